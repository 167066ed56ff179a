//! `terrace mount`

mod accept;
mod control;
mod http;
mod metrics;
mod recorder;

use std::io::Write;

use terrace::{CacheKind, CacheTrust};
use terrace_common::escape;
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt;
use terrace_common::output::print;
use terrace_mount::{Mount, MountCache, MountConfig, MountError};

use crate::args::MountArgs;
use control::Control;
use metrics::Page;
use recorder::Recorder;

const BLOCK_BYTES: u64 = 4096;

fn failure(error: MountError) -> Failure {
    match error {
        MountError::Config(what) => Failure::Usage(what),
        error => Failure::Work(error.to_string()),
    }
}

fn cache(args: &MountArgs, block_bytes: u64) -> Outcome<Option<MountCache>> {
    let Some(cache) = args.cache.block_cache() else { return Ok(None) };
    let CacheKind::File(path) = cache.kind() else {
        return Err(Failure::Usage("the cache of a mount is a file: --cache file:PATH,SIZE".to_owned()));
    };
    if args.cache.cache_trust != CacheTrust::Auto {
        let what = "a mount trusts what the times of the files prove, so there is no --cache-trust";
        return Err(Failure::Usage(what.to_owned()));
    }
    let policy = cache.policy_name().parse().map_err(|error| Failure::Usage(format!("{error}")))?;
    Ok(Some(MountCache {
        block_bytes: block_bytes as usize,
        policy,
        write_budget_bytes_day: cache.write_budget_bytes_day(),
        always: args.cache_always,
        ..MountCache::new(path, cache.bytes())
    }))
}

/// Mounts the directory until a signal comes or somebody unmounts it.
pub fn run(args: &MountArgs, output: &mut dyn Write) -> Outcome {
    let block_bytes = args.block_size.unwrap_or(BLOCK_BYTES);
    let cache = cache(args, block_bytes)?;
    let cache_path = cache.as_ref().map(|cache| escape::path(&cache.path).to_string());
    if args.block_size.is_some() && cache.is_none() && args.trace.is_none() {
        return Err(Failure::Usage("--block-size is that of --cache or --trace".to_owned()));
    }
    if args.cache_always && cache.is_none() {
        return Err(Failure::Usage("--cache-always uses the cache of --cache".to_owned()));
    }
    if args.control.is_some() && cache.is_none() {
        return Err(Failure::Usage("--control tells the policy of --cache which queries run".to_owned()));
    }
    let mut config = MountConfig::new(&args.source, &args.mountpoint);
    config.cache = cache;
    config.threads = usize::from(args.threads);
    config.read_only = args.read_only;
    config.allow_other = args.allow_other;
    // Without a cache the page would have nothing to show.
    config.passthrough = !args.no_passthrough && (args.cache.cache.is_some() || args.metrics.is_none());
    // Before the mount, since addresses may be in use.
    let page = args.metrics.map(Page::bind).transpose()?;
    let control = args.control.as_deref().map(Control::bind).transpose()?;
    let recorder = args.trace.as_deref().map(|path| Recorder::create(path, block_bytes)).transpose()?;
    config.observer = recorder.clone().map(|recorder| recorder as _);
    let mount = Mount::start(&config).map_err(|error| {
        recorder.iter().for_each(|recorder| recorder.discard());
        failure(error)
    })?;
    let (source, mountpoint) = (escape::path(&args.source), escape::path(&args.mountpoint));
    let what = match (cache_path, mount.stats().left_out) {
        (Some(path), Some(times)) => format!("without the cache {path}: {times} (--cache-always uses it)"),
        (Some(path), None) => format!("with the cache {path}"),
        (None, _) => "without a cache".to_owned(),
    };
    // A reader that has gone does not end the mount.
    let _ = print(output, format_args!("mounted {source} on {mountpoint} {what}\n"));
    let serving = match page {
        Some(page) => {
            let address = page.address();
            let serving = page.serve(mount.watch(), args)?;
            let _ = print(output, format_args!("statistics at http://{address}/\n"));
            Some(serving)
        }
        None => None,
    };
    let control = control.map(|control| control.serve(mount.watch())).transpose()?;
    let stats = mount.wait(|| interrupt::check().is_err()).map_err(failure);
    // Before all that may fail, since it writes the rest of the trace.
    let recorded = recorder.map(|recorder| recorder.finish()).transpose();
    drop((serving, control));
    if let (Err(_), Err(error)) = (&stats, &recorded) {
        tracing::warn!(%error, "the trace is not whole");
    }
    let printed = print(output, format_args!("{}\n", stats?));
    if let Some(recorded) = recorded? {
        print(output, format_args!("{recorded}\n"))?;
    }
    printed
}
