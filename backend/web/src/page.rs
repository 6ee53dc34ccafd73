//! The page: three files that are part of the program.

/// The document.
pub(crate) const DOCUMENT: &str = include_str!("../page/index.html");
/// Script of the page.
pub(crate) const SCRIPT: &str = include_str!("../page/page.js");
/// Style sheet of the page.
pub(crate) const STYLE: &str = include_str!("../page/page.css");

/// Content security policy of the page: only its own files.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
/// The same for the drawing, which has its style inside.
pub(crate) const DRAWING_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
