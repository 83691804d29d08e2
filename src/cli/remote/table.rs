//! Tables and objects on a terminal.
//!
//! Names and texts come from clients and children, so what steers a terminal is
//! escaped.

use serde_json::Value as Json;

use crate::base::terminal::{escaped, escaped_json};

/// A column: its heading, and the pointer to its cell in an item (RFC 6901).
pub(super) type Column = (&'static str, &'static str);

/// Items as a table with headings.
pub(crate) fn table(columns: &[Column], items: &[Json]) -> String {
    let headings = columns
        .iter()
        .map(|(heading, _)| (*heading).to_owned())
        .collect();
    // The first cell names the item for other commands, and the last one pushes none aside.
    let is_whole = |place: usize, at: &str| {
        place == 0 || place + 1 == columns.len() || COPIED.iter().any(|end| at.ends_with(end))
    };
    let cells = |item: &Json| {
        let columns = columns.iter().enumerate();
        let cells = columns.map(|(place, (_, at))| match cell(item, at) {
            whole if is_whole(place, at) => whole,
            long => cut(&long),
        });
        cells.collect()
    };
    let rows: Vec<Vec<String>> = std::iter::once(headings)
        .chain(items.iter().map(cells))
        .collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        line.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// An object: kind, name and version, and its specification.
pub(crate) fn object(object: &Json) -> String {
    let text = |name| cell(object, name);
    let name = match &object["tenant"] {
        Json::String(tenant) if object["kind"] != "tenant" => {
            format!("{}/{}", plain(tenant), text("/name"))
        }
        _ => text("/name"),
    };
    let head = format!(
        "{} {name}, version {}, updated {}\n",
        text("/kind"),
        text("/version"),
        text("/updated")
    );
    head + &with_secrets(&pretty(&object["spec"]))
}

/// Marks stored secrets, which the API shows as null; a text at the end of a line has a quotation mark.
fn with_secrets(spec: &str) -> String {
    let marked = |line: &str| {
        let (line, comma) = line
            .strip_suffix(',')
            .map_or((line, ""), |line| (line, ","));
        let marked = line
            .strip_suffix(": null")
            .map(|key| format!("{key}: (set)"));
        marked.unwrap_or_else(|| line.to_owned()) + comma + "\n"
    };
    spec.lines().map(marked).collect()
}

/// JSON on several lines, with escapes of its own: what is exported is applied again.
pub(super) fn pretty(json: &Json) -> String {
    let text = serde_json::to_string_pretty(json).unwrap_or_default();
    escaped_json(&text) + "\n"
}

/// Text in which what steers a terminal is escaped.
pub(crate) fn plain(text: &str) -> String {
    escaped(text).into_owned()
}

fn cell(item: &Json, at: &str) -> String {
    match item.pointer(at) {
        None | Some(Json::Null) => "-".to_owned(),
        Some(Json::String(text)) => plain(text),
        Some(Json::Array(items)) => {
            let items: Vec<String> = items.iter().map(|item| cell(item, "")).collect();
            items.join(",")
        }
        Some(Json::Number(number)) if at.ends_with("age_seconds") => {
            age(number.as_f64().unwrap_or_default())
        }
        Some(Json::Number(number)) if at.ends_with("_seconds") => {
            format!("{:.1}s", number.as_f64().unwrap_or_default())
        }
        Some(Json::Number(number)) if at.ends_with("_bytes") => {
            format!("{}KiB", number.as_u64().unwrap_or_default() / 1024)
        }
        Some(other) => plain(&other.to_string()),
    }
}

/// A text of at most [`CUT`] letters. Its middle goes, because subjects begin with their issuer and differ at the end.
fn cut(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= CUT {
        return text.to_owned();
    }
    let end = (CUT - 1) / 2;
    let (first, last) = (&letters[..CUT - 1 - end], &letters[letters.len() - end..]);
    first.iter().chain(&['…']).chain(last).collect()
}

/// The largest unit of an age.
fn age(seconds: f64) -> String {
    let seconds = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    match seconds.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds @ ..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Ends of the pointers of cells that people copy.
const COPIED: [&str; 2] = ["/url", "/command"];
/// Most letters of a cell between others.
const CUT: usize = 48;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table::*;

    #[test]
    fn columns_line_up_and_nothing_steers_the_terminal() {
        let items = [
            json!({"name": "a", "in": {"x": ["s", "t"]}, "age_seconds": 1052.4, "cpu_seconds": 1.25,
                "m_bytes": 4096}),
            json!({"name": "\u{1b}[2Jbb\u{9b}1m\n", "in": {"x": null}, "age_seconds": 10}),
            json!({"name": "c", "age_seconds": 7300}),
            json!({"name": "d", "age_seconds": 300_000}),
        ];
        let columns = [
            ("NAME", "/name"),
            ("X", "/in/x"),
            ("AGE", "/age_seconds"),
            ("CPU", "/cpu_seconds"),
            ("MEMORY", "/m_bytes"),
        ];
        insta::assert_snapshot!(table(&columns, &items), @r"
        NAME                   X    AGE  CPU   MEMORY
        a                      s,t  17m  1.2s  4KiB
        \u{1b}[2Jbb\u{9b}1m\n  -    10s  -     -
        c                      -    2h   -     -
        d                      -    3d   -     -
        ");
    }

    /// A subject of an identity provider moved the columns behind it off the screen.
    #[test]
    fn long_cells_between_others_are_cut_in_the_middle() {
        let issuer = format!("https://login.microsoftonline.com/{}/v2.0", "0".repeat(36));
        let items = [
            json!({
                "name": "n".repeat(50), "subject": format!("{issuer}#ada"), "now": {"url": "u".repeat(50)},
                "last": "l".repeat(50),
            }),
            json!({"name": "b", "subject": format!("{issuer}#eve"), "last": ["ü".repeat(48), "x"]}),
            json!({"name": "c", "subject": "ü".repeat(48), "last": "l"}),
        ];
        let columns = [
            ("NAME", "/name"),
            ("SUBJECT", "/subject"),
            ("URL", "/now/url"),
            ("LAST", "/last"),
        ];
        insta::assert_snapshot!(table(&columns, &items), @"
        NAME                                                SUBJECT                                           URL                                                 LAST
        nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn  https://login.microsofto…00000000000000/v2.0#ada  uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu  llllllllllllllllllllllllllllllllllllllllllllllllll
        b                                                   https://login.microsofto…00000000000000/v2.0#eve  -                                                   üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü,x
        c                                                   üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü  -                                                   l
        ");
    }

    #[test]
    fn objects_say_which_they_are() {
        let server = json!({
            "kind": "server", "tenant": "acme", "name": "files", "version": 3,
            "updated": "2027-01-31T12:00:00Z", "spec": {"command": "x\u{7f}", "env": {"A": null, "B": ": null"}},
        });
        insta::assert_snapshot!(object(&server), @r#"
        server acme/files, version 3, updated 2027-01-31T12:00:00Z
        {
          "command": "x\u007f",
          "env": {
            "A": (set),
            "B": ": null"
          }
        }
        "#);
    }

    /// An export had other texts than the gateway: ordinary Persian and emoji have such characters.
    #[test]
    fn json_for_programs_has_every_character() {
        let text = "\u{646}\u{200c}\u{647} \u{1f468}\u{200d}\u{1f469} \u{202e}\u{2028}\u{feff}\u{ad}\u{9b}\u{7f}\u{1b}\n\t\"\\";
        let whole = json!({"args": [text], text: 1});
        let shown = pretty(&whole);
        assert_eq!(serde_json::from_str::<Json>(&shown).unwrap(), whole);
        assert!(
            shown.contains(r"\u200c") && shown.contains("\u{646}"),
            "{shown}"
        );
        assert!(shown.lines().all(|line| line == plain(line)), "{shown}");
    }
}
