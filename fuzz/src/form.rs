//! Any text as request parameters: what is accepted means what the parser of browsers reads in it,
//! and what is refused is ambiguous.

use std::collections::BTreeMap;

use url::form_urlencoded;

use crate::oauth::form::{Form, FormError};

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let form = match Form::parse(text) {
        Ok(form) => form,
        Err(FormError(what)) => {
            let is_many = text.split('&').filter(|pair| !pair.is_empty()).count() > 100;
            assert!(is_many || !is_clear(text), "refused: {text:?}: {what}");
            return;
        }
    };
    assert!(is_clear(text), "accepted: {text:?}");
    let pairs: Vec<(String, String)> = form_urlencoded::parse(data).into_owned().collect();
    same(&form, &pairs);
    let again = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(&pairs)
        .finish();
    same(&Form::parse(&again).expect("what was written"), &pairs);
    // A percent sign more is one too many.
    assert!(Form::parse(&format!("{text}&x=%")).is_err());
}

/// Reports whether every percent sign begins an octet, and all octets are UTF-8.
fn is_clear(text: &str) -> bool {
    let is_pair =
        |part: &str| part.len() >= 2 && part.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    let parts = text.split(['&', '=']);
    text.split('%').skip(1).all(is_pair)
        && parts.into_iter().all(|part| {
            let mut octets = Vec::new();
            let mut rest = part.split('%');
            octets.extend(rest.next().unwrap_or_default().bytes());
            for part in rest {
                let (digits, plain) = part.as_bytes().split_at(2.min(part.len()));
                let digits = std::str::from_utf8(digits).unwrap_or_default();
                octets.extend(u8::from_str_radix(digits, 16));
                octets.extend(plain);
            }
            String::from_utf8(octets).is_ok()
        })
}

/// Compares all that a form tells with pairs in their order.
fn same(form: &Form, pairs: &[(String, String)]) {
    let mut known: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in pairs {
        known.entry(name).or_default().push(value);
    }
    for (name, values) in &known {
        assert_eq!(form.count(name), values.len(), "{name:?}");
        let first = values.first().copied().filter(|value| !value.is_empty());
        assert_eq!(form.get(name), first, "{name:?}");
    }
    let repeated = |except: &[&str]| {
        let mut all = known.iter().filter(|(name, _)| !except.contains(name));
        all.any(|(_, values)| values.len() > 1)
    };
    assert_eq!(form.repeated(&[]).is_some(), repeated(&[]));
    assert_eq!(
        form.repeated(&["resource"]).is_some(),
        repeated(&["resource"])
    );
    if !known.contains_key("other") {
        assert_eq!((form.count("other"), form.get("other")), (0, None));
    }
}
