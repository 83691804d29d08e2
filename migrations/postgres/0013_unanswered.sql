-- The number after that of the tokens of an identity (version) while a request by their refresh token has no answer that is
-- stored: the provider may take the token no more. Any other number says nothing about them. The same schema as that of
-- SQLite.
ALTER TABLE identities ADD COLUMN unanswered BIGINT NOT NULL DEFAULT 0;
