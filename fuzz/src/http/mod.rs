//! `src/http`: checks of a request's head, and the parser of streams between replicas.

pub(crate) mod edge;
pub(crate) mod replicas;
pub(crate) mod reply;
