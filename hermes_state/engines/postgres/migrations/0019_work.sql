-- A message whose turn has begun with it is no work for other nodes: they learn of what waits.

CREATE OR REPLACE TRIGGER work AFTER INSERT ON inbox FOR EACH ROW
  WHEN (NEW.state = 'new' AND (NEW.kind <> 'command' OR NEW.mode <> 'alone'))
  EXECUTE FUNCTION hint_of_chat('work');
