-- A node that learns a property of a model notifies the other nodes, which read it again.

CREATE TRIGGER learned AFTER INSERT OR UPDATE ON model_profiles FOR EACH STATEMENT
  EXECUTE FUNCTION hint_of_change('learned');
