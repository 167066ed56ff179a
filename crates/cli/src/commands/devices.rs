//! `terrace devices`

use std::io::Write;

use super::{print, print_json};
use crate::args::DevicesArgs;
use crate::devices;
use crate::failure::Outcome;
use crate::units::show_size;

/// Shows what this machine has.
pub fn run(args: &DevicesArgs, output: &mut dyn Write) -> Outcome {
    let found = devices::find(&args.store)?;
    if args.output.json {
        return print_json(output, &found);
    }
    for node in &found.nodes {
        let speed = match &node.unmeasured {
            Some(why) => format!("not measured: {why}"),
            None => format!(
                "load {:.0} ns, read {:.1} GB/s, write {:.1} GB/s (one thread)",
                node.read_latency_ns, node.read_gb_s, node.write_gb_s
            ),
        };
        let cpus = node.cpus.len();
        print(
            output,
            format_args!("node {}: {}, {cpus} processors, {speed}\n", node.node, show_size(node.bytes)),
        )?;
    }
    for dax in &found.dax {
        print(output, format_args!("direct access: {} ({})\n", crate::escape::text(&dax.path), dax.kind))?;
    }
    for disk in &found.store {
        let note = if disk.direct { "" } else { ", through the page cache: this is memory's speed" };
        print(
            output,
            format_args!(
                "disk under {}: random 4 KiB read {:.0} us (p99 {:.0}), durable write {:.0} us{note}\n",
                disk.path, disk.read_latency_us, disk.read_latency_p99_us, disk.durable_write_us
            ),
        )?;
    }
    Ok(())
}
