//! Strict parser of request parameters in `application/x-www-form-urlencoded`.
//!
//! Different parsers must not understand one request differently (RFC 6749, section 3.1), so repeated
//! or badly encoded parameters are refused. Not here: the body of a request (`posted`).

/// Parameters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

/// The reason why a text is not a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormError(pub(crate) &'static str);

impl Form {
    /// Parses a query or the text of a body. Names may repeat; callers check [`Self::repeated`] once
    /// they know where an error goes.
    pub(crate) fn parse(text: &str) -> Result<Self, FormError> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == PARAMETERS_MAX {
                return Err(FormError("too many parameters"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self(pairs))
    }

    /// The first parameter with this name. A parameter without a value counts as absent (RFC 6749,
    /// section 3.1).
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(own, _)| own == name);
        let (_, value) = found.next()?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// The rest of the names that begin with `prefix`, of parameters with a value.
    pub(crate) fn names<'f>(&'f self, prefix: &'f str) -> impl Iterator<Item = &'f str> {
        let named = self.0.iter().filter(|(_, value)| !value.is_empty());
        named.filter_map(move |(name, _)| name.strip_prefix(prefix))
    }

    /// The number of parameters with this name.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|(own, _)| own == name).count()
    }

    /// A name that occurs more than once, other than those in `except`.
    pub(crate) fn repeated(&self, except: &[&str]) -> Option<&str> {
        let names = self.0.iter().map(|(name, _)| name.as_str());
        let mut names = names.filter(|name| !except.contains(name));
        names.find(|name| self.count(name) > 1)
    }
}

/// Decodes percent and plus signs; an invalid encoding is refused rather than guessed.
fn decode(text: &str) -> Result<String, FormError> {
    let bad = FormError("a parameter is not encoded well");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                let (high, low) = (digit().ok_or(bad)?, digit().ok_or(bad)?);
                u8::try_from(high << 4 | low).map_err(|_| bad)?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad)
}

/// Maximum number of parameters: more than all known extensions use together.
const PARAMETERS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    #[test]
    fn parameters_are_read_as_they_were_written() {
        let form = Form::parse("a=1&b=x+y%20z&c=%C3%BC%00&d&e=&=f&g=h=i").unwrap();
        for (name, wanted) in [
            ("a", Some("1")),
            ("b", Some("x y z")),
            ("c", Some("ü\0")),
            ("d", None),
            ("e", None),
            ("", Some("f")),
            ("g", Some("h=i")),
            ("z", None),
        ] {
            assert_eq!(form.get(name), wanted, "{name}");
        }
        assert_eq!(Form::parse(""), Ok(Form::default()));
        assert_eq!(Form::parse("&&"), Ok(Form::default()));
    }

    #[test]
    fn ambiguous_parameters_are_refused() {
        for text in [
            "a=%",
            "a=%4",
            "a=%zz",
            "a=%+1",
            "%ff=1",
            "a=%C3",
            "a=%ED%A0%80",
        ] {
            assert!(Form::parse(text).is_err(), "{text}");
        }
        assert!(Form::parse(&"a&".repeat(101)).is_err());
        assert!(Form::parse(&"a&".repeat(100)).is_ok());
    }

    #[test]
    fn repeated_names_are_found() {
        let repeated = |text: &str| {
            let form = Form::parse(text).unwrap();
            form.repeated(&["resource"]).map(str::to_owned)
        };
        assert_eq!(repeated("a=1&b=2&resource=x&resource=y"), None);
        assert_eq!(repeated("a=1&b=2&a=1"), Some("a".to_owned()));
        assert_eq!(repeated("a=&a="), Some("a".to_owned()), "empty ones too");
        assert_eq!(repeated("a=1&%61=2"), Some("a".to_owned()), "in disguise");
        assert_eq!(
            Form::parse("resource=x&resource=y")
                .unwrap()
                .count("resource"),
            2
        );
    }

    proptest! {
        #[test]
        fn encoded_parameters_are_decoded(pairs in prop::collection::vec((any::<String>(), any::<String>()), 0..8)) {
            let text = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs(&pairs)
                .finish();
            let read = Form::parse(&text).unwrap();
            let kept: Vec<_> = pairs.into_iter().filter(|(name, value)| !(name.is_empty() && value.is_empty())).collect();
            let read: Vec<_> = read.0.into_iter().filter(|(name, value)| !(name.is_empty() && value.is_empty())).collect();
            assert_eq!(read, kept);
        }

        #[test]
        fn nothing_panics(text in ".*") {
            let _ = Form::parse(&text);
        }
    }
}
