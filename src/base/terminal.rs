//! Terminals: whether one takes colours and lines that are drawn again, and text of others made safe
//! for it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Display, Formatter, Write as _},
};

/// Abilities of the output that text for people goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    has_colours: bool,
    redraws: bool,
}

/// The meaning of a coloured text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Works, and needs attention.
    Warning,
    /// Does not work.
    Bad,
    /// Less important than the text around it.
    Faint,
}

impl Screen {
    /// The abilities of an output of this process. `NO_COLOR` (no-color.org) goes before
    /// `CLICOLOR_FORCE`, and this before `TERM`.
    pub(crate) fn of(env: &BTreeMap<String, String>, is_terminal: bool) -> Self {
        let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
        // Without a name nothing is known of the terminal.
        let is_smart = is_terminal && set("TERM").is_some_and(|term| term != "dumb");
        let is_forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        Self {
            has_colours: set("NO_COLOR").is_none() && (is_smart || is_forced),
            redraws: is_smart,
        }
    }

    /// Whether a line can be drawn again in its place.
    pub(crate) fn redraws(self) -> bool {
        self.redraws
    }

    /// A text in the colour of a tone, if the output has colours.
    pub(crate) fn paint<T: Display>(self, tone: Tone, text: T) -> Painted<T> {
        Painted {
            text,
            tone: self.has_colours.then_some(tone),
        }
    }
}

/// A text in a colour, or without one.
pub(crate) struct Painted<T> {
    text: T,
    tone: Option<Tone>,
}

impl<T: Display> Display for Painted<T> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        let code = match self.tone {
            None => return write!(to, "{text}"),
            Some(Tone::Good) => "32",
            Some(Tone::Warning) => "33",
            Some(Tone::Bad) => "31",
            Some(Tone::Faint) => "2",
        };
        write!(to, "\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Escapes what steers a terminal or breaks a line, so that no client and no child can write a line
/// of its own, move the cursor, or turn the direction of a text.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if steers(letter) {
            safe.extend(letter.escape_default());
        } else {
            safe.push(letter);
        }
    }
    Cow::Owned(safe)
}

/// JSON in which what steers a terminal is written as `\u` escapes, so that a program reads the same text. Such
/// characters stand within its strings alone, as do all escapes; breaks between its lines stay.
pub(crate) fn escaped_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter == '\n' || !steers(letter) {
            safe.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            _ = write!(safe, "\\u{unit:04x}");
        }
    }
    safe
}

/// Whether a text has nothing to escape, and a byte for each character: most are so.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Escaped text of at most `most` characters; a longer one ends with "…".
pub(crate) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most && is_plain(text) {
        return Cow::Borrowed(text);
    }
    // A name of megabytes is not escaped as a whole.
    let head: String = text.chars().take(most + 1).collect();
    let safe = escaped(&head);
    if safe.chars().count() <= most {
        return Cow::Owned(safe.into_owned());
    }
    let mut short: String = safe.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    Cow::Owned(short)
}

/// Whether a character steers a terminal, breaks a line, turns the direction of a text, or is not seen in it.
pub(crate) fn steers(letter: char) -> bool {
    letter != '\t' && is_unseen(letter)
}

/// Whether two names that differ by a character alone could look the same, or steer what shows them.
pub(crate) fn is_unseen(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            // Separators of lines, marks and overrides of direction (Unicode Bidi_Control), and what has no width.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::super::terminal::*;

    fn screen(env: &[(&str, &str)], is_terminal: bool) -> Screen {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Screen::of(&env.collect(), is_terminal)
    }

    #[test]
    fn colours_follow_the_terminal_and_the_variables() {
        let xterm = ("TERM", "xterm");
        for (env, is_terminal, has_colours, redraws) in [
            (&[xterm][..], true, true, true),
            (&[xterm], false, false, false),
            (&[], true, false, false),
            (&[("TERM", "dumb")], true, false, false),
            (&[xterm, ("NO_COLOR", "1")], true, false, true),
            (&[xterm, ("NO_COLOR", "")], true, true, true),
            (&[("CLICOLOR_FORCE", "1")], false, true, false),
            (&[("CLICOLOR_FORCE", "0")], false, false, false),
            (
                &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")],
                false,
                false,
                false,
            ),
        ] {
            let wanted = Screen {
                has_colours,
                redraws,
            };
            assert_eq!(screen(env, is_terminal), wanted, "{env:?} {is_terminal}");
        }
    }

    #[test]
    fn text_of_others_steers_no_terminal() {
        for (evil, shown) in [
            ("a\nb", "a\\nb"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}1m", "\\u{9b}1m"),
            ("x\u{202e}y", "x\\u{202e}y"),
            ("a\u{200b}da", "a\\u{200b}da"),
            ("\u{feff}ada\u{2060}", "\\u{feff}ada\\u{2060}"),
            ("ä…", "ä…"),
        ] {
            assert_eq!(escaped(evil), shown);
        }
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abcde…");
        assert_eq!(shortened("\n\n\n\n", 6), "\\n\\n\\…");
    }
}
