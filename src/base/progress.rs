//! Progress: one line on a terminal that is drawn again while work is under way, below all others.
//!
//! Only the thread that writes log lines draws it, so that no line runs into another.

use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

/// One output of the queue of log lines.
#[derive(Debug)]
pub(crate) enum Output {
    /// Whole lines.
    Lines(Vec<u8>),
    /// Work that begins.
    Begin {
        /// Its name until its end.
        key: String,
        /// The text to draw, escaped.
        text: String,
    },
    /// Work that has ended.
    End {
        /// Its name.
        key: String,
    },
    /// The end of all work that is shown.
    Settle,
}

/// Work under way, in the order in which it began.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    works: Vec<(String, String, Instant)>,
    is_drawn: bool,
}

impl Output {
    /// The bytes that it takes in the queue.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.len(),
            Self::Begin { key, text } => key.len() + text.len(),
            Self::End { key } => key.len(),
            // Not zero, because the end of the process waits for it.
            Self::Settle => 1,
        }
    }
}

impl Progress {
    /// Whether no work is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// The bytes to write for an output.
    pub(crate) fn take(&mut self, output: Output) -> Vec<u8> {
        let mut bytes = self.erased();
        match output {
            Output::Lines(lines) if bytes.is_empty() => bytes = lines,
            Output::Lines(lines) => bytes.extend(lines),
            Output::Begin { key, text } => self.works.push((key, text, Instant::now())),
            Output::End { key } => self.works.retain(|(known, ..)| *known != key),
            Output::Settle => self.works.clear(),
        }
        bytes.extend(self.drawn());
        bytes
    }

    /// The bytes that draw the line again.
    pub(crate) fn redrawn(&mut self) -> Vec<u8> {
        let mut bytes = self.erased();
        bytes.extend(self.drawn());
        bytes
    }

    fn erased(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.is_drawn) {
            ERASE.to_vec()
        } else {
            Vec::new()
        }
    }

    fn drawn(&mut self) -> Vec<u8> {
        let Some((_, text, began)) = self.works.first() else {
            return Vec::new();
        };
        self.is_drawn = true;
        let more = match self.works.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let end = format!("{more}  {} s", began.elapsed().as_secs());
        // A line that wraps could not be erased.
        let room = columns().saturating_sub(end.chars().count() + 1);
        let text: String = text.chars().take(room).collect();
        (text + &end).into_bytes()
    }
}

/// The width of the terminal behind stderr.
fn columns() -> usize {
    let size = tcgetwinsize(std::io::stderr()).map(|size| usize::from(size.ws_col));
    size.ok().filter(|columns| *columns > 0).unwrap_or(80)
}

/// To the begin of the line, and erase it (ECMA-48, EL).
const ERASE: &[u8] = b"\r\x1b[K";

#[cfg(test)]
mod tests {
    use super::super::progress::*;

    fn shown(progress: &mut Progress, output: Output) -> String {
        String::from_utf8(progress.take(output)).unwrap()
    }

    #[test]
    fn lines_go_above_the_progress() {
        let mut progress = Progress::default();
        let begin = |key: &str| Output::Begin {
            key: key.to_owned(),
            text: format!("preparing {key}"),
        };
        let line = || Output::Lines(b"x\n".to_vec());
        assert_eq!(shown(&mut progress, line()), "x\n");
        assert_eq!(shown(&mut progress, begin("a")), "preparing a  0 s");
        let both = shown(&mut progress, begin("b"));
        assert_eq!(both, "\r\x1b[Kpreparing a (and 1 more)  0 s");
        let end = |key: &str| Output::End {
            key: key.to_owned(),
        };
        assert_eq!(shown(&mut progress, end("a")), "\r\x1b[Kpreparing b  0 s");
        assert_eq!(shown(&mut progress, line()), "\r\x1b[Kx\npreparing b  0 s");
        assert_eq!(shown(&mut progress, Output::Settle), "\r\x1b[K");
        assert_eq!(shown(&mut progress, line()), "x\n");
    }
}
