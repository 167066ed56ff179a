//! Tests of the counting.

use terrace_block::MemoryDevice;

use super::*;

const GEOMETRY: Geometry = Geometry { page_bytes: 4096, segment_pages: 8 };

fn space(segments: u64, segments_max: u64) -> Space {
    let device = MemoryDevice::new("pages", GEOMETRY.file_bytes(segments));
    let space = Space::new(Arc::new(device), GEOMETRY, segments, segments_max * 8 * 4096);
    space.settle(0);
    space
}

/// Once the file was called full when no segment was left for a chunk.
#[test]
fn the_file_grows_when_an_image_finds_no_place() {
    let space = space(8, 10);
    let filled = space.allocate(64, 0, Stream::Changed).unwrap();
    assert_eq!(filled.iter().map(|run| run.pages).sum::<u64>(), 64);
    for number in 0..16 {
        let stream = if number % 2 == 0 { Stream::Changed } else { Stream::Moved };
        assert_eq!(space.allocate_or_grow(1, 0, stream).unwrap().len(), 1, "image {number}");
    }
    assert!(matches!(space.allocate_or_grow(1, 0, Stream::Changed), Err(Error::Full { .. })));
    assert_eq!(space.segments(), 10);
}

/// What is given up is not handed out, and is there again when the file grows, cut off or not.
#[test]
fn segments_that_were_given_up_come_back_empty() {
    for is_cut in [false, true] {
        let space = space(30, 64);
        let runs = space.allocate(10 * 8, 0, Stream::Changed).unwrap();
        let places = || runs.iter().flat_map(|run| run.first..run.first + run.pages);
        assert!(space.end_in_use().is_none(), "nine segments and a reserve are no less");
        assert!(space.retire_end() && !space.retire_end());
        let kept = space.segments();
        assert!((10..20).contains(&kept), "{kept}");
        if is_cut {
            space.truncate().unwrap();
            assert_eq!(space.device.len(), GEOMETRY.file_bytes(kept));
        }
        space.grant(4 * 8).unwrap();
        assert!(space.segments() > kept);
        assert_eq!(space.device.len() > GEOMETRY.file_bytes(29), !is_cut);
        places().for_each(|place| space.free(place));
        // All but the one that is still open for the other stream.
        let all = space.allocate((space.segments() - 1) * 8, 0, Stream::Moved).unwrap();
        let mut found: Vec<u64> = all.iter().flat_map(|run| run.first..run.first + run.pages).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len() as u64, (space.segments() - 1) * 8, "every place is handed out once");
    }
}
