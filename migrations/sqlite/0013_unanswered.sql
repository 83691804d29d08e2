-- 1 while a request by the refresh token of an identity has no answer that is stored: the provider may take the token no
-- more. The same schema as that of PostgreSQL.
ALTER TABLE identities ADD COLUMN unanswered BIGINT NOT NULL DEFAULT 0;
