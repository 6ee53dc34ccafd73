//! The page beside a daemon, and what monitors one.

mod browser;
mod place;

mod monitoring;
mod page;
mod scraper;
mod tls;
