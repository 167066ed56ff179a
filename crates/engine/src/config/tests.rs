//! Tests of the split of a budget, and of refused settings.

use super::split::*;
use super::*;
use crate::pool::frame_cost;

const SMALL: PageSizes =
    PageSizes { own: SizeClass::SMALLEST, others: [false; SizeClass::COUNT], most: None, most_values: None };
const LARGE: PageSizes = PageSizes { own: SizeClass::LARGEST_NODE, ..SMALL };

#[test]
fn an_absurd_share_of_old_versions_is_refused() {
    for bytes in [64 << 20, u64::MAX - 1, u64::MAX] {
        assert!(
            matches!(
                Split::new(64 << 20, Some(bytes), RecordCache::Auto, Backend::Frames, SMALL, 1000),
                Err(Error::Config(_))
            ),
            "{bytes}"
        );
    }
}

#[test]
fn the_parts_do_not_exceed_the_whole() {
    for total in [1 << 20, 3 << 20, 8 << 20, 64 << 20, 1 << 30, 64 << 30] {
        for own in SizeClass::all().filter(|class| !class.is_for_values()) {
            let Ok(split) =
                Split::new(total, None, RecordCache::Auto, Backend::Frames, PageSizes::one(own), 1000)
            else {
                assert!(total < 8 << 20 && own > SizeClass::SMALLEST, "{total} bytes are enough for {own:?}");
                continue;
            };
            let buffers = split.buffers;
            let parts = buffers.log + buffers.staging + buffers.batches + split.versions;
            assert!(split.frame_bytes + parts <= total);
            assert!(split.frame_bytes > total / 2 || total < 16 << 20, "frames get most of {total}");
            split.check_class(own, 64 << 20, 1 << 20).unwrap();
        }
    }
}

/// Beside it, the array takes nothing.
#[test]
fn a_hash_table_has_the_share_of_the_array() {
    for (total, pages) in [(1 << 20, 600), (64 << 20, 1000), (64 << 20, 200_000)] {
        let array = Split::new(total, None, RecordCache::Off, Backend::Frames, SMALL, pages).unwrap();
        let builder = Builder::default().page_table(PageTableKind::Hash).swizzle(false);
        let hash = hash_options(&builder, SMALL.own, pages, (total, total)).unwrap().unwrap();
        let bytes = hash.bytes(pages) + 2 * pages;
        let hashed = array.with_hash(hash, SMALL, pages).unwrap();
        let more = bytes.saturating_sub((total / 48).max(18 * pages));
        // Rounded to whole frames.
        let less = array.frame_bytes - hashed.frame_bytes;
        assert!(less.abs_diff(more) <= frame_cost(SMALL.own), "{total}, {pages}: {less} {more}");
        let later = hashed.resized(total, hashed.versions, SMALL, pages + 50_000);
        assert!(later.map_or(0, |later| later.frame_bytes) <= hashed.frame_bytes);
    }
}

#[test]
fn the_systems_tables_of_mapped_pages_come_off_the_frames() {
    let split =
        |backend, sizes| Split::new(64 << 20, None, RecordCache::Off, backend, sizes, 100_000).unwrap();
    for (sizes, bytes_per_page) in [(SMALL, 8), (LARGE, 128)] {
        let [frames, mapped] = Backend::ALL.map(|backend| split(backend, sizes).frame_bytes);
        let more = frames - mapped;
        // Rounded to whole frames.
        assert!(more.abs_diff(100_000 * bytes_per_page) <= frame_cost(sizes.own), "{more} bytes");
    }
}

#[test]
fn another_budget_changes_frames_and_old_versions_only() {
    let first = Split::new(64 << 20, None, RecordCache::Auto, Backend::Frames, SMALL, 1000).unwrap();
    assert_eq!(first.resized(64 << 20, first.versions, SMALL, 1000).unwrap(), first);
    let large = first.resized(1 << 30, 64 << 20, SMALL, 1000).unwrap();
    let as_before =
        Split { total: first.total, versions: first.versions, frame_bytes: first.frame_bytes, ..large };
    assert_eq!(as_before, first);
    assert!(large.frame_bytes > (7 << 30) / 8 && large.frame_bytes < 1 << 30);
    let error = large.resized(4 << 20, 1 << 20, SMALL, 1000).unwrap_err().to_string();
    assert!(error.contains("frames") && error.contains("give it about"), "{error}");
}

#[test]
fn parts_are_made_for_the_largest_pages_asked_for() {
    let split = |sizes| Split::new(32 << 20, None, RecordCache::Auto, Backend::Frames, sizes, 1000);
    let small = split(SMALL).unwrap();
    assert!(small.check_class(SizeClass::SMALLEST, 1 << 20, 64 << 10).is_ok());
    let large = split(PageSizes { most: Some(SizeClass::LARGEST_NODE), ..SMALL }).unwrap();
    assert!(large.check_class(SizeClass::LARGEST_NODE, 4 << 20, 256 << 10).is_ok());
    let refused = |split: &Split, log, segment| {
        split.check_class(SizeClass::LARGEST_NODE, log, segment).unwrap_err().to_string()
    };
    for (split, log, segment, says) in [
        (&small, 64 << 20, 1 << 20, "page_size_max(65536)"),
        (&large, (4 << 20) - 1, 1 << 20, "log_max"),
        (&large, 4 << 20, (256 << 10) - 1, "segment"),
    ] {
        let error = refused(split, log, segment);
        assert!(error.contains(says), "{error}");
    }
    // A size in use has its least frames and its buffers.
    let mut others = [false; SizeClass::COUNT];
    others[SizeClass::LARGEST_NODE.index()] = true;
    let used = split(PageSizes { others, ..SMALL }).unwrap();
    assert_eq!(used.buffers.log, large.buffers.log);
    assert!(used.frame_bytes > large.frame_bytes);
    let most = |total| {
        Split::new(total, None, RecordCache::Auto, Backend::Frames, PageSizes { others, ..SMALL }, 1000)
    };
    assert!(most(6 << 20).unwrap_err().to_string().contains("frames of 4096 and of 65536 bytes"));
}

#[test]
fn a_way_to_move_memory_wants_mapped_pages_and_nodes() {
    let directory = || std::sync::Arc::new(crate::MemoryDirectory::new());
    for way in terrace_io::Migrate::ALL {
        let builder = || Builder::default().directory(directory()).dram(4 << 20).no_middle().migrate(way);
        let with = |middle: &str| builder().middle(middle.parse().unwrap());
        let refused = [
            (builder().backend(Backend::Mapped), "there is no middle tier"),
            (with("simulated:dram,1MiB").backend(Backend::Mapped), "the middle tier is simulated:dram"),
            (with("numa:0,1MiB").backend(Backend::Frames), "the back end is frames"),
        ];
        for (builder, why) in refused {
            let error = builder.open("").unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error}");
            let said = error.to_string();
            assert!(said.contains(why) && said.contains(&format!("migrate is {way}")), "{said}");
        }
        assert!(with("numa:0,1MiB").backend(Backend::Mapped).check_migrate().is_ok());
    }
}

/// The error names the node's room, not the DRAM for frame headers.
type Set = fn(Builder) -> Builder;

/// As a default they apply only where they can.
#[test]
fn lines_are_refused_where_they_cannot_be() {
    let open = |set: Set, lines: u64| {
        let directory = Arc::new(terrace_io::MemoryDirectory::new());
        let builder = Builder::default().directory(directory).dram(16 << 20).backend(Backend::Frames);
        let builder = set(builder.middle("simulated:dram,1MiB".parse().unwrap()));
        builder.clone().lines(lines).open("").map_or_else(
            |refused| {
                let defaults = Defaults { lines: Some(lines), ..Defaults::default() };
                let db = Builder { defaults, ..builder }.open("").unwrap();
                assert!(db.shared.pool.frames.lines.is_none());
                refused.to_string()
            },
            |db| format!("opened, {}", db.shared.pool.frames.lines.is_some()),
        )
    };
    assert_eq!(open(|builder| builder, 64), "opened, true");
    assert_eq!(open(|builder| builder, 0), "opened, false");
    let cases: [(Set, u64, &str); 6] = [
        (|builder| builder, 100, "has 64, 128, 256 or 512 bytes"),
        (|builder| builder.no_middle(), 64, "no middle tier"),
        (|builder| builder.backend(Backend::Mapped), 64, "one address in both tiers"),
        (|builder| builder.replacement(Replacement::FifoPaper), 64, "keeps one copy"),
        (|builder| builder.page_size(32 << 10), 64, "more than 256"),
        (|builder| builder.page_size(64 << 10), 128, "more than 256"),
    ];
    for (set, lines, why) in cases {
        let said = open(set, lines);
        assert!(said.contains(why) && said.contains(&format!("lines of {lines} bytes")), "{said}");
    }
    assert_eq!(open(|builder| builder.page_size(64 << 10), 256), "opened, true");
}

#[test]
fn mini_pages_are_refused_where_they_hold_no_lines() {
    let open = |page_bytes: u64, lines: u64| {
        let directory = Arc::new(terrace_io::MemoryDirectory::new());
        let builder = Builder::default().directory(directory).dram(4 << 20).backend(Backend::Frames);
        let builder =
            builder.middle("simulated:dram,1MiB".parse().unwrap()).page_size(page_bytes).lines(lines);
        builder.clone().mini_pages(true).open("").map_or_else(
            |refused| {
                let defaults = Defaults { minis: true, ..Defaults::default() };
                let db = Builder { defaults, ..builder }.open("").unwrap();
                assert!(db.shared.pool.frames.minis.is_none());
                refused.to_string()
            },
            |db| format!("opened, {}", db.shared.pool.frames.minis.is_some()),
        )
    };
    assert_eq!([open(4096, 64), open(16 << 10, 256)], ["opened, true"; 2]);
    assert!(open(4096, 0).contains("mini pages: they hold lines"), "{}", open(4096, 0));
    let said = open(4096, 128);
    assert!(said.contains("a frame of 4096 bytes has no room for two with lines of 128 bytes"), "{said}");
    assert!(open(16 << 10, 512).contains("no room for two"));
}

#[test]
fn a_middle_tier_beyond_its_node_is_refused_for_the_node() {
    let directory = std::sync::Arc::new(crate::MemoryDirectory::new());
    let builder = Builder::default().directory(directory).dram(4 << 20);
    let error = builder.clone().middle("numa:0,8000000GiB".parse().unwrap()).open("").unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("the middle tier: node 0 has") && said.contains("MiB would fit"), "{said}");
    let large = builder.middle("simulated:dram,100GiB".parse().unwrap()).open("").unwrap_err().to_string();
    assert!(large.contains("the middle tier") && large.contains("give it about"), "{large}");
}

#[test]
fn a_budget_too_small_says_what_would_do() {
    let error =
        Split::new(1 << 20, None, RecordCache::Auto, Backend::Frames, LARGE, 0).unwrap_err().to_string();
    assert!(error.contains("frames") && error.contains("give it about"), "{error}");
    assert!(Split::new(64 << 20, Some(u64::MAX), RecordCache::Auto, Backend::Frames, SMALL, 0).is_err());
    assert!(Builder::default().dram(1000).dram_bytes().unwrap_err().to_string().contains("1 MiB"));
    assert!(Builder::default().page_size(5000).new_layout().is_err());
    assert!(Builder::default().page_size_max(5000).new_layout().is_err());
    assert!(Builder::default().log_max(5000).new_layout().is_err());
}
