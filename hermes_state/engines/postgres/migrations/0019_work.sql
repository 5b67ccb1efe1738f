-- A message stored together with its turn is not work for other nodes. They are notified of waiting messages only.

CREATE OR REPLACE TRIGGER work AFTER INSERT ON inbox FOR EACH ROW
  WHEN (NEW.state = 'new' AND (NEW.kind <> 'command' OR NEW.mode <> 'alone'))
  EXECUTE FUNCTION hint_of_chat('work');
