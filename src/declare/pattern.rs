//! Patterns of names and URIs: `*` matches any text, `?` any character, and `\` escapes the next
//! character.
//!
//! Patterns are compiled once. Matching does not backtrack: each stretch between two `*` is
//! searched once, from the end of the one before, so a match takes one pass over the text. Whether a
//! pattern and a URI template have a URI in common takes one pass over the beginning and the end.

use std::iter;

use memchr::memmem::Finder;

use crate::config::Wrong;

/// A compiled pattern, compared by its text.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    tokens: Vec<Token>,
    /// The beginning of a matching text.
    first: Stretch,
    /// The stretches behind each `*`; the last one ends the text.
    rest: Vec<Stretch>,
}

/// One element of a pattern, or of a URI template seen as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// This character.
    Letter(char),
    /// Any one character.
    One,
    /// Any text.
    Any,
}

/// The part between two `*`.
#[derive(Clone, Debug)]
enum Stretch {
    /// Text without `?`.
    Plain(Box<Finder<'static>>),
    /// Characters; none for `?`.
    Wild(Vec<Option<char>>),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// The mistake in it.
    pub(crate) fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |what: &str, remedy: &str| Wrong::new(format!("{text:?} {what}"), remedy);
        if text.is_empty() {
            return Err(wrong("matches nothing", "write \"*\", or leave it out"));
        }
        if text.len() > MAX_PATTERN {
            let remedy = format!("write at most {MAX_PATTERN} bytes");
            return Err(wrong("is too long", &remedy));
        }
        let mut tokens = Vec::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            tokens.push(match letter {
                '*' if tokens.last() == Some(&Token::Any) => continue,
                '*' => Token::Any,
                '?' => Token::One,
                '\\' => match letters.next() {
                    Some(escaped) => Token::Letter(escaped),
                    None => return Err(wrong("ends with \\", "write \\\\ for the character")),
                },
                letter => Token::Letter(letter),
            });
        }
        let mut stretches = tokens.split(|token| *token == Token::Any).map(Stretch::of);
        let first = stretches.next().unwrap_or_else(|| Stretch::of(&[]));
        let rest = stretches.collect();
        Ok(Self {
            tokens,
            first,
            rest,
        })
    }

    /// Reports whether it matches every text.
    pub(crate) fn is_everything(&self) -> bool {
        self.tokens == [Token::Any]
    }

    /// Reports whether it matches the whole text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(mut text) = self.first.strip_from(text) else {
            return false;
        };
        let Some((last, middle)) = self.rest.split_last() else {
            return text.is_empty();
        };
        for stretch in middle {
            let Some(left) = stretch.find(text) else {
                return false;
            };
            text = left;
        }
        last.is_end_of(text)
    }

    /// Reports whether a URI of `template` matches.
    ///
    /// If both leave a text open somewhere, the beginning and the end decide: each takes there what
    /// the other has between them.
    pub(crate) fn meets(&self, template: &Template<'_>) -> bool {
        let [first, .., last] = &template.parts[..] else {
            return template.parts.iter().any(|text| self.matches(text));
        };
        let (tokens, from_end) = (self.tokens.iter(), self.tokens.iter().rev());
        let is_bound = |token: &&Token| **token != Token::Any;
        let fits = |(token, letter): (&Token, char)| token.fits(letter);
        tokens.take_while(is_bound).zip(first.chars()).all(fits)
            && from_end
                .take_while(is_bound)
                .zip(last.chars().rev())
                .all(fits)
            && (!self.rest.is_empty() || template.places_in(&self.tokens).is_some())
    }

    /// URIs of `template`, which [meets](Self::meets) this, that match. What both leave open is empty
    /// in one, and a character that other patterns are unlikely to name in the other.
    pub(crate) fn examples(&self, template: &Template<'_>) -> Vec<String> {
        let [first, middle @ .., last] = &template.parts[..] else {
            return template.fillings().into();
        };
        if self.rest.is_empty() {
            let places = template.places_in(&self.tokens);
            return places
                .map(|places| template.put(&self.tokens, &places))
                .into_iter()
                .collect();
        }
        let stretches: Vec<&[Token]> = self.tokens.split(|token| *token == Token::Any).collect();
        let [start, between @ .., end] = &stretches[..] else {
            return Vec::new();
        };
        let (start, end) = (laid_over(start, first), laid_over_end(end, last));
        let own: Vec<String> = between
            .iter()
            .map(|stretch| laid_over(stretch, ""))
            .collect();
        let own = own.iter().map(String::as_str);
        let parts: Vec<&str> = iter::once(&*start)
            .chain(own)
            .chain(middle.iter().copied())
            .chain(iter::once(&*end))
            .collect();
        FILLINGS.map(|filling| parts.join(filling)).into()
    }
}

impl Stretch {
    fn of(tokens: &[Token]) -> Self {
        let letters: Vec<Option<char>> = tokens
            .iter()
            .map(|token| match token {
                Token::Letter(letter) => Some(*letter),
                Token::One | Token::Any => None,
            })
            .collect();
        match letters.iter().copied().collect::<Option<String>>() {
            Some(text) => Self::Plain(Box::new(Finder::new(&text).into_owned())),
            None => Self::Wild(letters),
        }
    }

    /// The rest of a text that begins with the stretch.
    fn strip_from<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Plain(finder) => {
                let is_there = text.as_bytes().starts_with(finder.needle());
                is_there.then(|| text.get(finder.needle().len()..))?
            }
            Self::Wild(letters) => {
                let mut found = text.chars();
                for letter in letters {
                    let found = found.next()?;
                    if letter.is_some_and(|letter| letter != found) {
                        return None;
                    }
                }
                Some(found.as_str())
            }
        }
    }

    /// The rest of the text behind the first occurrence. Every occurrence has the same length, so
    /// no later one leaves more.
    fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Plain(finder) => {
                let at = finder.find(text.as_bytes())?;
                text.get(at + finder.needle().len()..)
            }
            Self::Wild(_) => text
                .char_indices()
                .find_map(|(at, _)| self.strip_from(text.get(at..)?)),
        }
    }

    fn is_end_of(&self, text: &str) -> bool {
        match self {
            Self::Plain(finder) => text.as_bytes().ends_with(finder.needle()),
            Self::Wild(letters) => {
                let from_end = letters.len().saturating_sub(1);
                let at = text.char_indices().rev().nth(from_end).map(|(at, _)| at);
                let end = at.and_then(|at| text.get(at..));
                end.is_some_and(|end| self.strip_from(end).is_some())
            }
        }
    }
}

impl Token {
    fn fits(self, letter: char) -> bool {
        match self {
            Self::Letter(own) => own == letter,
            Self::One | Self::Any => true,
        }
    }
}

/// A URI template (RFC 6570). Each expression matches any text: the client chooses its values, and
/// their treatment by the server is unknown here.
#[derive(Debug)]
pub(crate) struct Template<'t> {
    /// The texts around the expressions, one more than those.
    parts: Vec<&'t str>,
}

impl<'t> Template<'t> {
    /// Parses a template; none if it is too long.
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        if text.len() > MAX_TEMPLATE {
            return None;
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((part, behind)) = rest.split_once('{') {
            parts.push(part);
            // An unterminated expression matches any rest.
            rest = behind.split_once('}').map_or("", |(_, rest)| rest);
        }
        parts.push(rest);
        Some(Self { parts })
    }

    /// URIs of this template: with empty expressions, and with a character in each that patterns are
    /// unlikely to name.
    pub(crate) fn fillings(&self) -> [String; 2] {
        FILLINGS.map(|filling| self.parts.join(filling))
    }

    /// The positions of the parts in a pattern without `*`: those between the first and the last as
    /// early as they fit, which leaves most to the next one.
    fn places_in(&self, tokens: &[Token]) -> Option<Vec<usize>> {
        let (mut places, mut from) = (Vec::new(), 0);
        for (index, part) in self.parts.iter().enumerate() {
            let length = part.chars().count();
            let latest = tokens.len().checked_sub(length)?;
            let (earliest, latest) = match index {
                0 => (0, 0),
                _ if index + 1 == self.parts.len() => (latest.max(from), latest),
                _ => (from, latest),
            };
            let fits = |at: &usize| {
                let tokens = tokens.iter().skip(*at);
                tokens
                    .zip(part.chars())
                    .all(|(token, letter)| token.fits(letter))
            };
            let place = (earliest..=latest).find(fits)?;
            from = place + length;
            places.push(place);
        }
        Some(places)
    }

    /// The text of a pattern without `*`, with the parts at these positions.
    fn put(&self, tokens: &[Token], places: &[usize]) -> String {
        let mut letters: Vec<char> = laid_over(tokens, "").chars().collect();
        for (part, place) in self.parts.iter().zip(places) {
            let letters = letters.iter_mut().skip(*place);
            letters
                .zip(part.chars())
                .for_each(|(own, letter)| *own = letter);
        }
        letters.into_iter().collect()
    }
}

/// The longer one of two texts that agree where both are; `?` becomes the letter of the other.
fn laid_over(tokens: &[Token], text: &str) -> String {
    let mut letters = text.chars();
    let mut laid = String::new();
    for token in tokens {
        let other = letters.next();
        laid.push(match token {
            Token::Letter(letter) => *letter,
            Token::One | Token::Any => other.unwrap_or(UNLIKELY),
        });
    }
    laid.extend(letters);
    laid
}

/// The same of two texts that agree at their ends.
fn laid_over_end(tokens: &[Token], text: &str) -> String {
    let length = text.chars().count();
    let (before, beside) = tokens.split_at(tokens.len().saturating_sub(length));
    let more = text.char_indices().nth(length.saturating_sub(tokens.len()));
    let (start, end) = text.split_at(more.map_or(text.len(), |(at, _)| at));
    [
        laid_over(before, ""),
        start.to_owned(),
        laid_over(beside, end),
    ]
    .concat()
}

/// Texts that both a pattern and a template leave open.
const FILLINGS: [&str; 2] = ["", "\u{f8ff}"];
/// A character of a private use area.
const UNLIKELY: char = '\u{f8ff}';
/// Maximum bytes of a pattern: bounds a stretch with `?`, which is compared at each position.
const MAX_PATTERN: usize = 256;
/// Maximum bytes of a template; those of servers have fewer than a hundred.
const MAX_TEMPLATE: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pattern::*;

    fn is_match(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(text)
    }

    #[test]
    fn patterns_match_whole_texts() {
        let table = [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "A", false),
            ("*", "", true),
            ("**", "x", true),
            ("delete_*", "delete_", true),
            ("delete_*", "delete", false),
            ("*_file", "_file", true),
            ("*_file", "x_file_", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "axbxbxc", true),
            ("a*b*c", "axcxb", false),
            ("*a*a*", "xax", false),
            ("*ab*ba*", "aba", false),
            ("*ab*ba*", "abba", true),
            ("a?c", "aüc", true),
            ("a?c", "ac", false),
            ("*?b", "ab", true),
            ("*?b", "b", false),
            ("*a?c*", "xxabcyy", true),
            ("?*?", "a", false),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            (r"\\", r"\", true),
            ("file:///a/*", "file:///a/../b", true),
            ("file:///a/*", "FILE:///a/b", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text}");
        }
        for bad in ["", r"a\", &"x".repeat(257)] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
        assert!(Pattern::parse("**").unwrap().is_everything());
        assert!(!Pattern::parse("?*").unwrap().is_everything());
    }

    #[test]
    fn long_texts_take_one_pass() {
        let pattern = Pattern::parse("*,a*,b*,c*,d*?e*,x").unwrap();
        let text = ",a".repeat(32_000);
        let began = crate::base::processor_time();
        assert!(!pattern.matches(&text));
        let took = crate::base::processor_time().saturating_sub(began);
        assert!(took < std::time::Duration::from_millis(250));
    }

    #[test]
    fn an_example_is_of_both() {
        let of = |pattern: &str, template: &str| {
            let (pattern, template) = (
                Pattern::parse(pattern).unwrap(),
                Template::parse(template).unwrap(),
            );
            let examples = pattern
                .meets(&template)
                .then(|| pattern.examples(&template));
            examples
                .unwrap_or_default()
                .join(" ")
                .replace(UNLIKELY, "~")
        };
        for (pattern, template, expected) in [
            ("db://a/*", "db://{table}/1", "db://a//1 db://a/~/1"),
            ("a*/b/*z", "{x}/c{y}yz", "a/b//cyz a~/b/~/c~yz"),
            ("*ü?", "{x}üz", "üz ~üz"),
            ("*??", "{x}ü", "~ü ~~ü"),
            ("*.md", "x://{name}.txt", ""),
            ("a://b", "a://{x}b{y}", "a://b"),
            ("a?c", "a{x}", "a~c"),
            ("a???", "a{x}b", "a~~b"),
            ("a???c", "a{x}üb{y}", "aüb~c"),
            ("aba", "ab{x}ba", ""),
            ("abc", "ab{x", "abc"),
            ("*b", "ab", "ab ab"),
        ] {
            assert_eq!(of(pattern, template), expected, "{pattern} {template}");
        }
        assert!(!of("*", "{a}{b}").is_empty());
        assert!(Template::parse(&"{".repeat(1025)).is_none());
    }

    /// A naive reference implementation of pattern matching.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match (pattern.first(), text.first()) {
            (None, None) => true,
            (Some('*'), _) => {
                naive(&pattern[1..], text) || (!text.is_empty() && naive(pattern, &text[1..]))
            }
            (Some('?'), Some(_)) => naive(&pattern[1..], &text[1..]),
            (Some(a), Some(b)) if a == b => naive(&pattern[1..], &text[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matches_what_the_naive_one_does(pattern in "[ab*?ü]{1,10}", text in "[abü]{0,12}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = naive(&letters(&pattern), &letters(&text));
            prop_assert_eq!(is_match(&pattern, &text), expected);
        }

        #[test]
        fn examples_match(pattern in "[abü*?]{1,8}", template in "([abü]|\\{x\\}){0,8}") {
            let pattern = Pattern::parse(&pattern).unwrap();
            let as_pattern = template.replace("{x}", "*");
            let of = Template::parse(&template).unwrap();
            let is_met = pattern.meets(&of);
            let examples = if is_met { pattern.examples(&of) } else { Vec::new() };
            prop_assert_eq!(is_met, !examples.is_empty());
            for found in &examples {
                prop_assert!(pattern.matches(found), "{}", found);
                prop_assert!(as_pattern.is_empty() || is_match(&as_pattern, found), "{}", found);
            }
            // If both match one of these short texts, there must be an example.
            for bits in 0..64_u32 {
                let text: String = (0..6).map(|at| if bits >> at & 1 == 0 { 'a' } else { 'b' }).collect();
                for end in 0..=6 {
                    let text = &text[..end];
                    let is_of_both = pattern.matches(text)
                        && (if as_pattern.is_empty() { text.is_empty() } else { is_match(&as_pattern, text) });
                    prop_assert!(!is_of_both || is_met, "{}", text);
                }
            }
        }
    }
}
