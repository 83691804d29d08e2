//! JSON text as it is: spans of values, members of objects, and changes by splicing.
//!
//! * `members`: members of objects, texts of strings, and splices
//! * `scanner`: strict scanner, which finds the spans of values and builds none

mod members;
pub(crate) mod scanner;

pub(crate) use self::members::{
    canonical, decoded, each_member, get, is_named, member, members, push_members, push_sorted,
    push_string, push_without, splice, with_member,
};
pub(crate) use self::scanner::{Items, Scanner, Span, SyntaxError};
