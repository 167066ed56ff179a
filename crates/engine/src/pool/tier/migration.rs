//! The tier that a page goes to, where there is a choice.
//!
//! Spitfire (SIGMOD 2021, section 3) decides each step by a probability. The four are a [`Policy`]:
//!
//! | probability | of this event                                   | section | CXL paper (III-F) |
//! |-------------|-------------------------------------------------|---------|-------------------|
//! | `D_r`       | a read promotes a page from the middle tier     | 3.1     | `L_r`             |
//! | `D_w`       | a write promotes a page from the middle tier    | 3.2     | `L_w`             |
//! | `N_r`       | a loaded or new page goes to the middle tier    | 3.3     | `C_r`             |
//! | `N_w`       | a page that leaves DRAM goes to the middle tier | 3.4     | `C_w`             |
//!
//! [`path`] decides, as a pure function of policy, intent and a [`Die`]. A restarted operation
//! casts the same die: otherwise contention alone would promote pages.

mod admission;
mod choice;
mod live;
mod path;
mod policy;
mod settings;

pub use super::tuner::Tuner;
pub use admission::AdmissionQueue;
pub use choice::{Choice, CleanVictims};
pub use live::LivePolicy;
pub use path::{Access, Die, Intent, Path, asks_queue, path};
use policy::ONE;
pub use policy::Policy;
pub(crate) use settings::LiveMigration;
pub use settings::Migration;
