//! Findings of a reader: the mistakes in a document, or the outline of all documents.

use std::{cell::RefCell, rc::Rc};

use super::{json_schema::JsonSchema, outline::Outline};
use crate::config::Mistake;

/// The shared findings of the tables of one document: the list of its mistakes.
///
/// A reader with an outline reads no document: it describes every key that it can read.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    mistakes: RefCell<Vec<Mistake>>,
    outline: Option<Rc<Outline>>,
}

impl Findings {
    /// The schema of the tables that `read` reads. It runs once for each form of a table.
    pub(crate) fn describe(read: impl Fn(&Self)) -> JsonSchema {
        let outline = Rc::new(Outline::default());
        let findings = Self {
            outline: Some(Rc::clone(&outline)),
            ..Self::default()
        };
        loop {
            read(&findings);
            if !outline.advance() {
                return outline.schema("");
            }
        }
    }

    /// The outline, if the reader describes its keys.
    pub(super) fn outline(&self) -> Option<&Outline> {
        self.outline.as_deref()
    }

    /// Adds one mistake.
    pub(crate) fn add(&self, mistake: Mistake) {
        self.mistakes.borrow_mut().push(mistake);
    }

    /// `value`, unless there are mistakes.
    pub(crate) fn result<T>(self, value: T) -> Result<T, Vec<Mistake>> {
        let mistakes = self.mistakes.into_inner();
        if mistakes.is_empty() {
            Ok(value)
        } else {
            Err(mistakes)
        }
    }

    /// The number of mistakes.
    pub(super) fn len(&self) -> usize {
        self.mistakes.borrow().len()
    }

    /// Inserts mistakes in front of that at `at`.
    pub(super) fn insert(&self, at: usize, mistakes: Vec<Mistake>) {
        self.mistakes.borrow_mut().splice(at..at, mistakes);
    }
}

impl From<Vec<Mistake>> for Findings {
    fn from(mistakes: Vec<Mistake>) -> Self {
        Self {
            mistakes: RefCell::new(mistakes),
            outline: None,
        }
    }
}
