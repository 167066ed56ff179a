//! Helpers of several tests.

pub mod copies;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use terrace::pages::{PageAllocator, PagesBuilder};
use terrace::{Builder, Concurrency, Db};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A builder with the back end, the middle tier and the protocol that CI names in the environment.
pub fn builder() -> Builder {
    Db::builder().defaults_from(variable).expect("the variables name what there is")
}

/// For tests of what [`Concurrency::Occ`] alone refuses, or lets through.
pub fn optimistic() -> Builder {
    builder().concurrency(Concurrency::Occ)
}

/// A builder of page allocators with the back end that CI names.
pub fn pages_builder() -> PagesBuilder {
    let backend = variable("TERRACE_BACKEND").map(|name| name.parse().expect("a back end"));
    PageAllocator::builder().backend(backend.unwrap_or_default())
}

/// Sets a stop flag when dropped, also after a failed assertion.
///
/// A scope joins its threads before it reports a panic.
pub struct Retry<'a>(pub &'a AtomicBool);

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
