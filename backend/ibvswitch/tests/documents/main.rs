//! The pages for users, and the package that they come with.

#[path = "../page/mod.rs"]
mod page;

mod documentation;
mod package;
