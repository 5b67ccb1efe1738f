-- What a node learns of a model is told to the others, who read it again.

CREATE TRIGGER learned AFTER INSERT OR UPDATE ON model_profiles FOR EACH STATEMENT
  EXECUTE FUNCTION hint_of_change('learned');
