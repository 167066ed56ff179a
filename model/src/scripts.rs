//! Directed scripts.
use crate::actions::Action::{self, *};
use crate::flags::{Flag, Flags};
use crate::world::Devices::*;

/// A script.
#[derive(Debug)]
pub struct Script {
    /// Flags.
    pub leaves_out: &'static [Flag],
    /// Steps.
    pub actions: &'static [Action],
}
impl Script {
    /// The flags.
    pub fn flags(&self) -> Flags {
        Flags::of(self.leaves_out)
    }
}
/// All.
pub const ALL: &[Script] = &[];
