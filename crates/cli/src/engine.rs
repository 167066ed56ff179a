//! Opens databases with the engine.

use crate::failure::{Failure, Outcome};
use crate::store::{Database, Opener, Settings};

/// The engine of this workspace.
pub struct Engine;

impl Opener for Engine {
    fn open(&self, _settings: &Settings) -> Outcome<Box<dyn Database>> {
        Err(Failure::Work("this build has no engine to open databases with".to_owned()))
    }
}
