-- Several nodes: their identities, the accounts that they serve, and hints of new work.

CREATE TABLE nodes (
  id         text COLLATE "C" PRIMARY KEY,
  name       text COLLATE "C" NOT NULL,
  version    text COLLATE "C" NOT NULL,
  role       text COLLATE "C" NOT NULL CHECK (role IN ('node', 'worker')),
  settings   text COLLATE "C" NOT NULL,
  pid        bigint NOT NULL,
  seats      bigint NOT NULL,
  started_at bigint NOT NULL,
  seated_at  bigint NOT NULL,
  gone_at    bigint
);

-- Owners of accounts. Every send checks the epoch of the account's owner.
CREATE TABLE accounts (
  account text COLLATE "C" PRIMARY KEY,
  epoch   bigint NOT NULL
);

-- Partial answers, shown by the owner of the chat's account. Not unlogged: after a server crash the index of an unlogged
-- table was unreadable, and every turn reads it.
CREATE TABLE previews (
  turn_id  bigint PRIMARY KEY,
  text     text COLLATE "C" NOT NULL,
  shown_at bigint NOT NULL
);

-- A hint is sent with the commit of the rows that it announces. It names the kind of change and the id of the chat or row.
CREATE FUNCTION hint_of_chat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('hermes_gateway', TG_ARGV[0] || ' ' || NEW.chat_id);
  RETURN NULL;
END $$;

CREATE FUNCTION hint_of_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('hermes_gateway', TG_ARGV[0] || ' ' || NEW.id);
  RETURN NULL;
END $$;

CREATE FUNCTION hint_of_preview() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('hermes_gateway', 'preview ' || NEW.turn_id);
  RETURN NULL;
END $$;

CREATE FUNCTION hint_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('hermes_gateway', TG_ARGV[0] || ' 0');
  RETURN NULL;
END $$;

CREATE TRIGGER work AFTER INSERT ON inbox FOR EACH ROW WHEN (NEW.kind <> 'command' OR NEW.mode <> 'alone')
  EXECUTE FUNCTION hint_of_chat('work');
CREATE TRIGGER decided AFTER UPDATE OF state ON turns FOR EACH ROW
  WHEN (OLD.state = 'waiting' AND NEW.state = 'running') EXECUTE FUNCTION hint_of_chat('work');
CREATE TRIGGER owed AFTER INSERT ON outbox FOR EACH ROW WHEN (NEW.state = 'pending')
  EXECUTE FUNCTION hint_of_chat('owed');
CREATE TRIGGER stopped AFTER UPDATE OF state ON turns FOR EACH ROW WHEN (NEW.state = 'stopped')
  EXECUTE FUNCTION hint_of_row('stopped');
CREATE TRIGGER dropped AFTER UPDATE OF state ON inbox FOR EACH ROW
  WHEN (NEW.state = 'dropped' AND NEW.kind = 'command') EXECUTE FUNCTION hint_of_row('dropped');
CREATE TRIGGER preview AFTER INSERT OR UPDATE ON previews FOR EACH ROW EXECUTE FUNCTION hint_of_preview();
CREATE TRIGGER access AFTER INSERT OR UPDATE OR DELETE ON pairings FOR EACH STATEMENT
  EXECUTE FUNCTION hint_of_change('access');
CREATE TRIGGER asked AFTER INSERT ON approvals FOR EACH STATEMENT EXECUTE FUNCTION hint_of_change('asked');
CREATE TRIGGER scheduled AFTER INSERT OR UPDATE ON schedules FOR EACH STATEMENT
  EXECUTE FUNCTION hint_of_change('scheduled');

-- json_extract again: a NUL written as \u0000 in a document now becomes U+FFFD, as in every text in this database.
-- chr(1), which occurs in no document, protects escaped backslashes during the replacement.
CREATE OR REPLACE FUNCTION json_extract(document text, path text) RETURNS text IMMUTABLE STRICT LANGUAGE sql
  AS $$SELECT jsonb_path_query_first(
    CAST(replace(replace(replace(document, '\\', chr(1)), '\u0000', '\ufffd'), chr(1), '\\') AS jsonb),
    CAST(path AS jsonpath)) #>> '{}'$$;
