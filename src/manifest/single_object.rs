//! One object in a file of its own, as whoever sends it to a gateway writes it.
//!
//! Not here: what its keys mean (`manifest`), which the gateway says.

use std::collections::BTreeMap;

use crate::config::{Fields, Format, Mistake, reader::syntax_mistakes};
use crate::declare::{Document, object::to_json};

/// One object's document `text`, which stands in `file`, nothing of the environment left open; what
/// its keys mean is left to whoever gets it.
pub(crate) fn document(
    file: &str,
    text: &str,
    format: Format,
    env: &BTreeMap<String, String>,
) -> Result<Document, Vec<Mistake>> {
    let (tree, errors) = format.parse(file, text);
    let mut mistakes = syntax_mistakes(file, errors);
    let mut document = Document::new();
    if let Some(tree) = &tree {
        let members = Fields::any(tree, "", &mut mistakes);
        for (member, node) in members.members() {
            let json = to_json(node, env, member, &mut mistakes);
            document.insert(member.to_owned(), json);
        }
    }
    if mistakes.is_empty() {
        Ok(document)
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::single_object::*;

    #[test]
    fn a_document_is_read_where_it_is_written() {
        let env = BTreeMap::from([("TOKEN".to_owned(), "a$b".to_owned())]);
        let read = |text| document("F", text, Format::Yaml, &env);
        let found = read("command: x\nenv: {T: \"${env:TOKEN}\"}\n").unwrap();
        // A dollar is written twice in the manifest's syntax.
        assert_eq!(found["env"]["T"], "a$$b");
        let lines = |text| {
            let found = read(text).unwrap_err();
            found.iter().map(Mistake::to_string).collect::<Vec<_>>()
        };
        let unset = lines("command: x\nargs: [\"${env:NO}\"]\n");
        assert!(unset[0].starts_with("F:2: args: "), "{unset:?}");
        assert!(lines("[1]")[0].starts_with("F:1: : "));
        assert!(lines("a: 1\na: 2\n")[0].starts_with("F:2: a: "));
    }
}
