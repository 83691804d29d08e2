//! The one issuer of a tenant (DESIGN section 6): a URL that clients compare byte for byte.

/// The issuer of `tenant`: the root if it is the tenant of `[default]`, else `…/t/{tenant}`; never
/// with a slash at the end.
pub(crate) fn issuer(public_url: &str, default: Option<&(String, String)>, tenant: &str) -> String {
    match default {
        Some((default, _)) if default == tenant => public_url.to_owned(),
        _ => format!("{public_url}/t/{tenant}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::issuer::*;

    #[test]
    fn only_the_default_tenant_has_the_root() {
        let default = ("a".to_owned(), "x".to_owned());
        let of = |tenant| issuer("https://gw.test", Some(&default), tenant);
        assert_eq!(of("a"), "https://gw.test");
        assert_eq!(of("b"), "https://gw.test/t/b");
        assert_eq!(
            issuer("https://gw.test/x", None, "a"),
            "https://gw.test/x/t/a"
        );
    }
}
