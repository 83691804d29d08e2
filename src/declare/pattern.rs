//! Patterns of names and URIs: `*` matches any text, `?` any character, and `\` escapes the next
//! character.
//!
//! Patterns are compiled once. Matching does not backtrack: each stretch between two `*` is
//! searched once, from the end of the one before, so a match takes one pass over the text.

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

    /// A matching URI of `template`, if there is one. Where both leave a character open, it is one
    /// that other patterns are unlikely to name.
    pub(crate) fn example(&self, template: &Template) -> Option<String> {
        example(&self.tokens, &template.0)
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

/// A URI template (RFC 6570). Each expression matches any text: the client chooses its values, and
/// their treatment by the server is unknown here.
#[derive(Debug)]
pub(crate) struct Template(Vec<Token>);

impl Template {
    /// Parses a template; none if it is too long.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEMPLATE {
            return None;
        }
        let mut tokens = Vec::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            if letter == '{' {
                // An unterminated expression matches any rest.
                letters.find(|letter| *letter == '}');
                tokens.push(Token::Any);
            } else {
                tokens.push(Token::Letter(letter));
            }
        }
        Some(Self(tokens))
    }
}

/// The shortest path through two sequences at once, breadth first; every pair of positions is
/// visited at most once.
fn example(one: &[Token], other: &[Token]) -> Option<String> {
    let width = other.len() + 1;
    let mut seen = vec![false; (one.len() + 1) * width];
    // Positions, the previous step, and the character between.
    let mut steps: Vec<((usize, usize), usize, Option<char>)> = vec![((0, 0), 0, None)];
    let mut at = 0;
    while let Some(&((i, j), ..)) = steps.get(at) {
        if i == one.len() && j == other.len() {
            return Some(spell(&steps, at));
        }
        for (i, j, letter) in moves((i, one.get(i)), (j, other.get(j))) {
            if !std::mem::replace(&mut seen[i * width + j], true) {
                steps.push(((i, j), at, letter));
            }
        }
        at += 1;
    }
    None
}

fn spell(steps: &[((usize, usize), usize, Option<char>)], mut at: usize) -> String {
    let mut letters = Vec::new();
    while at > 0 {
        let (_, before, letter) = steps[at];
        letters.extend(letter);
        at = before;
    }
    letters.into_iter().rev().collect()
}

fn moves(
    (i, one): (usize, Option<&Token>),
    (j, other): (usize, Option<&Token>),
) -> Vec<(usize, usize, Option<char>)> {
    let letter = |token: &Token| match token {
        Token::Letter(letter) => *letter,
        Token::One | Token::Any => UNLIKELY,
    };
    match (one, other) {
        (Some(Token::Any), Some(Token::Any)) => vec![
            (i + 1, j + 1, Some(UNLIKELY)),
            (i + 1, j, None),
            (i, j + 1, None),
        ],
        (Some(Token::Any), None) => vec![(i + 1, j, None)],
        (None, Some(Token::Any)) => vec![(i, j + 1, None)],
        (Some(Token::Any), Some(token)) => vec![(i, j + 1, Some(letter(token))), (i + 1, j, None)],
        (Some(token), Some(Token::Any)) => vec![(i + 1, j, Some(letter(token))), (i, j + 1, None)],
        (Some(Token::Letter(a)), Some(Token::Letter(b))) if a != b => Vec::new(),
        (Some(Token::One), Some(token)) | (Some(token), Some(_)) => {
            vec![(i + 1, j + 1, Some(letter(token)))]
        }
        (None, _) | (_, None) => Vec::new(),
    }
}

/// A character of a private use area.
const UNLIKELY: char = '\u{f8ff}';
/// Maximum bytes of a pattern: bounds a stretch with `?`, which is compared at each position.
const MAX_PATTERN: usize = 256;
/// Maximum bytes of a template: bounds the pairs of positions, visited for each pattern.
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
        let began = tokio::time::Instant::now();
        assert!(!pattern.matches(&text));
        assert!(began.elapsed() < std::time::Duration::from_millis(250));
    }

    #[test]
    fn an_example_is_of_both() {
        let of = |pattern: &str, template: &str| {
            let pattern = Pattern::parse(pattern).unwrap();
            pattern.example(&Template::parse(template).unwrap())
        };
        assert_eq!(of("db://a/*", "db://{table}/1"), Some("db://a/1".into()));
        assert_eq!(of("*.md", "x://{name}.txt"), None);
        assert_eq!(of("a://b", "a://{x}b{y}"), Some("a://b".into()));
        assert_eq!(of("a?c", "a{x}"), Some(format!("a{UNLIKELY}c")));
        assert_eq!(of("abc", "ab{x"), Some("abc".into()));
        assert!(of("*", "{a}{b}").is_some());
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
        fn examples_match(pattern in "[ab*?]{1,8}", template in "([ab]|\\{x\\}){0,8}") {
            let pattern = Pattern::parse(&pattern).unwrap();
            let as_pattern = template.replace("{x}", "*");
            let found = pattern.example(&Template::parse(&template).unwrap());
            if let Some(found) = &found {
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
                    prop_assert!(!is_of_both || found.is_some(), "{}", text);
                }
            }
        }
    }
}
