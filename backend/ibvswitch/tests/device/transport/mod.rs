//! Queue pairs, from the work request to the completion.

mod alternate_paths;
mod completions;
mod counters;
mod dynamic;
mod errors;
mod links;
mod losses;
mod matching;
mod requests;
mod traffic;
