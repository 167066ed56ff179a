//! The log.
mod parse;
mod record;
