//! Client ids that are URLs of metadata documents.
//!
//! Not here: addresses that may be asked (`base::reach`), and the documents (`metadata_document`).

use url::Url;

/// Parses a client id URL (draft-ietf-oauth-client-id-metadata-document, section 3). Only the
/// canonical spelling of the URL parser is accepted: it has no dot segments and nothing else that
/// parsers read differently.
///
/// # Errors
///
/// The reason why it is none, for people.
pub(crate) fn parse(id: &str) -> Result<Url, &'static str> {
    let url = Url::parse(id).map_err(|_| "the client id is no URL")?;
    // A backslash belongs to no URI (RFC 3986, appendix A), and some parsers take it for a slash; in a query this one
    // leaves it as it is.
    if url.as_str() != id || id.contains('\\') || id.len() > ID_MAX {
        return Err("the client id is a URL that is too long, or not in its usual form");
    }
    if url.fragment().is_some() || url.path() == "/" {
        return Err("the client id is a URL without a path, or with a fragment");
    }
    Ok(url)
}

/// Maximum size of a client id URL in bytes.
const ID_MAX: usize = 1024;
