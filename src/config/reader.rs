//! Reader of values: types, units, and mistakes with their remedies.
//!
//! Configuration and manifests share it. Not here: the keys that exist.

use std::{fmt, time::Duration};

use super::document::{Node, SyntaxError, Value};
use crate::base::terminal::escaped;

/// A mistake of an operator, with its place and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Its place: `FILE:LINE`, a variable, or a flag.
    pub(crate) place: String,
    /// The key, dotted.
    pub(crate) key: String,
    /// The mistake.
    pub(crate) what: String,
    /// The remedy.
    pub(crate) remedy: String,
}

impl fmt::Display for Mistake {
    /// One line, whatever the names in it are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            key,
            what,
            remedy,
        } = self;
        f.write_str(&escaped(&format!("{place}: {key}: {what}; {remedy}")))
    }
}

/// A mistake in a value, without its place and key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The mistake.
    pub(crate) what: String,
    /// The remedy.
    pub(crate) remedy: String,
}

impl Wrong {
    /// A mistake with its remedy.
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The mistake in the member `name` of the value.
    pub(crate) fn of(self, name: &str) -> Self {
        let what = format!("{name}: {}", self.what);
        Self { what, ..self }
    }

    /// The mistake at this place and key.
    pub(crate) fn at(self, place: &str, key: &str) -> Mistake {
        Mistake {
            place: place.to_owned(),
            key: key.to_owned(),
            what: self.what,
            remedy: self.remedy,
        }
    }
}

/// The mistakes of a document that does not parse.
pub(crate) fn syntax_mistakes(file: &str, errors: Vec<SyntaxError>) -> Vec<Mistake> {
    let mistake = |error: SyntaxError| {
        let wrong = Wrong::new(error.what, "correct the syntax near this line");
        wrong.at(&format!("{file}:{}", error.line), "syntax")
    };
    errors.into_iter().map(mistake).collect()
}

impl Node {
    /// The mistake of a value of another type.
    pub(crate) fn unexpected(&self, wanted: &str) -> Wrong {
        let what = format!("{} where {wanted} is expected", self.kind());
        let quotable = matches!(
            self.value,
            Value::Flag(_) | Value::Whole(_) | Value::Other(_)
        );
        let remedy = if quotable && wanted.contains("text") {
            "put it in quotes".to_owned()
        } else {
            format!("write {wanted}")
        };
        Wrong::new(what, remedy)
    }

    /// The texts of a list, each parsed.
    pub(crate) fn each<T>(
        &self,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, Wrong> {
        let items = self.items()?.into_iter();
        items.map(|item| parse(&item.text()?)).collect()
    }

    /// The node as a text.
    pub(crate) fn text(&self) -> Result<String, Wrong> {
        match (&self.value, &self.word) {
            (Value::Text(text), _) => Ok(text.clone()),
            (_, Some(word)) => Ok(word.clone()),
            _ => Err(self.unexpected("a text")),
        }
    }

    /// The node as true or false.
    pub(crate) fn flag(&self) -> Result<bool, Wrong> {
        match self.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.unexpected("true or false")),
        }
    }

    /// The node as a number of at least `min`.
    pub(crate) fn count(&self, min: u32) -> Result<u32, Wrong> {
        let Value::Whole(whole) = self.value else {
            return Err(self.unexpected("a whole number"));
        };
        let count = u32::try_from(whole).ok().filter(|count| *count >= min);
        let range = || format!("write a number from {min} to {}", u32::MAX);
        count.ok_or_else(|| Wrong::new(format!("{whole} is out of range"), range()))
    }

    /// The node as a number, at least one.
    pub(crate) fn at_least_one(&self) -> Result<usize, Wrong> {
        self.count(1)
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// The node as a duration; `"0s"` and `""` are zero.
    pub(crate) fn duration(&self) -> Result<Duration, Wrong> {
        match &self.value {
            Value::Text(text) => duration(text),
            _ => Err(self.unexpected("a text like \"250ms\", \"30s\" or \"1m30s\"")),
        }
    }

    /// The node as a size of at least one byte.
    pub(crate) fn some_bytes<T: TryFrom<u64>>(&self) -> Result<T, Wrong> {
        let bytes = Some(self.size()?).filter(|bytes| *bytes > 0);
        let fits = bytes.and_then(|bytes| T::try_from(bytes).ok());
        fits.ok_or_else(|| Wrong::new("must hold at least one byte", "write a size like \"4MiB\""))
    }

    /// The node as a size in bytes; a bare number counts bytes, `""` is zero.
    pub(crate) fn size(&self) -> Result<u64, Wrong> {
        match &self.value {
            Value::Text(text) => size(text),
            Value::Whole(whole) => u64::try_from(*whole)
                .map_err(|_| Wrong::new(format!("{whole} is negative"), SIZE_REMEDY)),
            _ => Err(self.unexpected("a text like \"64KiB\" or \"4MiB\"")),
        }
    }

    /// Its items; an untyped text of a flag or a variable is split at commas.
    pub(crate) fn items(&self) -> Result<Vec<Self>, Wrong> {
        match (&self.value, &self.word) {
            (Value::List(items), _) => Ok(items.clone()),
            (_, Some(word)) => {
                let words = word
                    .split(',')
                    .map(str::trim)
                    .filter(|word| !word.is_empty());
                let node = |word: &str| Self::new(&self.place, Value::Text(word.to_owned()));
                Ok(words.map(node).collect())
            }
            _ => Err(self.unexpected("a list")),
        }
    }
}

/// The mistake of a key that is not in `known`.
pub(crate) fn unknown_key<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Wrong {
    let remedy = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("known here: {}", known.collect::<Vec<_>>().join(", ")),
    };
    Wrong::new("unknown key", remedy)
}

/// The known name nearest to `name`, if it is near enough to be intended.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let max_distance = (length / 3).clamp(1, 3);
    // Only names of about the same length are near, so that a long name costs nothing.
    let is_near = |candidate: &&str| candidate.chars().count().abs_diff(length) <= max_distance;
    known
        .take(COMPARED)
        .filter(is_near)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= max_distance)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Maximum known names that an unknown one is compared with: a tenant may have thousands of servers.
const COMPARED: usize = 256;

/// The Levenshtein distance of two texts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// A name in a URL: `[a-z0-9][a-z0-9-]{0,62}`.
pub(crate) fn name(text: &str) -> Result<String, Wrong> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let starts = text.bytes().next().is_some_and(fits);
    if starts && text.len() <= 63 && text.bytes().all(|byte| fits(byte) || byte == b'-') {
        return Ok(text.to_owned());
    }
    let remedy = "use a-z, 0-9 and -, at most 63, the first not -";
    Err(Wrong::new(format!("{text:?} is not a name"), remedy))
}

/// Parses one of a few words.
pub(crate) fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Wrong> {
    let found = choices
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value);
    found.ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let what = format!("{text:?} is none of {}", words.join(", "));
        let remedy = nearest(text, words.iter().copied()).map_or_else(
            || "write one of them".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        Wrong::new(what, remedy)
    })
}

/// Parses a duration: numbers with `d`, `h`, `m`, `s`, `ms`, in descending order; `""` is zero.
pub(crate) fn duration(text: &str) -> Result<Duration, Wrong> {
    let wrong = |why: &str| Wrong::new(format!("{text:?} {why}"), DURATION_REMEDY);
    let mut total: u64 = 0;
    let mut below = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = leading_number(rest).ok_or_else(|| wrong("is not a duration"))?;
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, next) = tail.split_at(end);
        let unit = match unit {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            "" => return Err(wrong("has no unit")),
            _ => return Err(wrong("is not a duration")),
        };
        if unit >= below {
            return Err(wrong("has its units out of order"));
        }
        let span = number.and_then(|number| number.checked_mul(unit));
        total = span
            .and_then(|span| total.checked_add(span))
            .filter(|total| *total <= MAX_DURATION_MS)
            .ok_or_else(|| wrong("is longer than ten years"))?;
        (below, rest) = (unit, next);
    }
    Ok(Duration::from_millis(total))
}

/// Parses a size in bytes: a number, alone or with `B`, `KiB`, `MiB`, `GiB`, `TiB`; `""` is zero.
pub(crate) fn size(text: &str) -> Result<u64, Wrong> {
    if text.is_empty() {
        return Ok(0);
    }
    let wrong = |why: &str| Wrong::new(format!("{text:?} {why}"), SIZE_REMEDY);
    let (number, unit) = leading_number(text).ok_or_else(|| wrong("is not a size"))?;
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(wrong("is not a size")),
    };
    // File offsets and rlimits are signed in the kernel, so half the range.
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| wrong("is too large"))
}

/// The leading digits and the rest; the number is none if it is too large.
fn leading_number(text: &str) -> Option<(Option<u64>, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (!digits.is_empty()).then(|| (digits.parse().ok(), rest))
}

const DURATION_REMEDY: &str = "write it like \"250ms\", \"30s\" or \"1m30s\"";
const SIZE_REMEDY: &str = "write it like \"64KiB\", \"4MiB\" or \"1GiB\"";
/// Ten years: no clock overflows by adding it.
const MAX_DURATION_MS: u64 = 10 * 365 * 86_400_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reader::*;

    #[test]
    fn a_mistake_is_one_line_that_steers_no_terminal() {
        let wrong = Wrong::new("w\u{202e}", "r\r");
        let said = wrong.at("F\u{1b}]0;x\u{7}:1", "a\n\u{1b}[2J").to_string();
        assert_eq!(said, r"F\u{1b}]0;x\u{7}:1: a\n\u{1b}[2J: w\u{202e}; r\r");
    }

    #[test]
    fn durations() {
        let good = [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("1m30s", 90_000),
            ("1h0m1ms", 3_600_001),
            ("2d", 172_800_000),
            ("0s", 0),
            ("", 0),
        ];
        for (text, millis) in good {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in [
            "30",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            " 1s",
            "30s1m",
            "1s1s",
            "1y",
            "1S",
            "99999999999999999999s",
            "9999d",
            "1m30",
            "٣s",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        let good = [
            ("64KiB", 65_536),
            ("4MiB", 4_194_304),
            ("1GiB", 1_073_741_824),
            ("1TiB", 1_099_511_627_776),
            ("7", 7),
            ("7B", 7),
            ("0", 0),
            ("", 0),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "4MB",
            "4M",
            "-1",
            "1.5GiB",
            "4 MiB",
            "MiB",
            "99999999TiB",
            "18446744073709551615",
            "4mib",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn durations_round_trip(millis in 0..MAX_DURATION_MS) {
            let (h, m, s, ms) =
                (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60, millis % 1000);
            let text = format!("{h}h{m}m{s}s{ms}ms");
            prop_assert_eq!(duration(&text), Ok(Duration::from_millis(millis)));
            let text = format!("{millis}ms");
            prop_assert_eq!(duration(&text), Ok(Duration::from_millis(millis)));
        }

        #[test]
        fn sizes_round_trip(number in 0_u64..1 << 20, unit in 0_usize..5) {
            let (name, factor) =
                [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1_u64 << 30)][unit];
            prop_assert_eq!(size(&format!("{number}{name}")), Ok(number * factor));
        }

        #[test]
        fn units_never_panic(text in "\\PC*|[0-9]{0,25}[a-zA-Z]{0,3}[0-9]{0,3}[a-z]{0,2}") {
            drop(duration(&text));
            drop(size(&text));
            drop(name(&text));
        }

        #[test]
        fn distance_is_symmetric(a in "[a-d]{0,8}", b in "[a-d]{0,8}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }

    #[test]
    fn names() {
        let long = "a".repeat(63);
        for good in ["a", "0", "a-b", "files", long.as_str()] {
            assert!(name(good).is_ok(), "{good}");
        }
        let longer = "a".repeat(64);
        for bad in ["", "-a", "A", "a_b", "a.b", "ä", longer.as_str()] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn suggests_the_nearest_key() {
        let known = ["listen", "allowed_hosts", "max_body"];
        let near = |name| nearest(name, known.into_iter());
        assert_eq!(near("lisen"), Some("listen"));
        assert_eq!(near("alowed_host"), Some("allowed_hosts"));
        assert_eq!(near("max-body"), Some("max_body"));
        assert_eq!(near("zebra"), None);
    }

    #[test]
    fn wrong_types_are_named() {
        let node = Node::new("F:3", Value::Whole(5));
        let mistake = node.duration().unwrap_err().at("F:3", "a.b");
        assert_eq!(
            mistake.to_string(),
            "F:3: a.b: a number where a text like \"250ms\", \"30s\" or \"1m30s\" is expected; put it in quotes"
        );
        assert!(Node::from_word("--set", "5").text().is_ok());
        let listed = Node::from_word("--set", "a, b").items().unwrap();
        assert_eq!(listed.len(), 2);
    }
}
