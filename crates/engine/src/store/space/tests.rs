//! Tests of allocation and counting.

use terrace_io::MemoryDevice;

use super::*;

const GEOMETRY: Geometry = Geometry { segment_blocks: 8 };

fn space(segments: u64, segments_max: u64) -> Space {
    space_of(GEOMETRY, segments, segments_max)
}

/// Segments with room for long images.
fn wide_space(segments: u64) -> Space {
    space_of(Geometry { segment_blocks: 32 }, segments, segments)
}

fn space_of(geometry: Geometry, segments: u64, segments_max: u64) -> Space {
    let device = MemoryDevice::new("pages", geometry.file_bytes(segments));
    let bytes_max = segments_max * geometry.segment_blocks * BLOCK_BYTES as u64;
    let space = Space::new(Arc::new(device), geometry, segments, bytes_max);
    space.end_count(0);
    space
}

/// Regression: the file was reported full when a chunk found no segment.
#[test]
fn the_file_grows_when_an_image_finds_no_block() {
    let space = space(8, 10);
    assert_eq!(space.allocate(&[1; 64], 0, Stream::Changed).unwrap().len(), 64);
    for number in 0..16 {
        let stream = if number % 2 == 0 { Stream::Changed } else { Stream::Moved };
        assert_eq!(space.allocate_or_grow(&[1], 0, stream).unwrap().len(), 1, "image {number}");
    }
    assert!(matches!(space.allocate_or_grow(&[1], 0, Stream::Changed), Err(Error::Full { .. })));
    assert_eq!(space.segments(), 10);
}

/// Retired segments are not allocated; they return when the file grows.
#[test]
fn segments_that_were_given_up_come_back_empty() {
    for is_cut in [false, true] {
        let space = space(30, 64);
        let extents = space.allocate(&[1; 10 * 8], 0, Stream::Changed).unwrap();
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
        extents.into_iter().for_each(|extent| space.free(extent));
        // All but the other stream's open segment.
        let lengths = vec![1; (space.segments() - 1) as usize * 8];
        let all = space.allocate(&lengths, 0, Stream::Moved).unwrap();
        let mut found: Vec<u64> = all.iter().map(|extent| extent.first).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len() as u64, (space.segments() - 1) * 8, "every block is handed out once");
    }
}

/// Even in the order that wastes most of each segment. Also with write-back's reserved segments.
#[test]
fn images_of_several_sizes_that_are_granted_find_room_in_any_order() {
    let new = || space_of(Geometry { segment_blocks: 64 }, 100, 100);
    let images = [16, 16, 16, 1];
    let fill = |space: &Space| (0..).take_while(|_| space.grant(images.iter().sum()).is_ok()).count();
    let space = new();
    space.mix(16, false).unwrap();
    let groups = fill(&space);
    assert!(groups > 75, "{groups}");
    assert!(space.allocate(&images.repeat(groups), 3, Stream::Changed).is_some());

    // Images of one size fill too much for a mixture: it is refused without a change, or only
    // noted.
    let space = new();
    let groups = fill(&space);
    assert!(space.allocate(&images.repeat(groups), 0, Stream::Changed).is_none(), "{groups}");
    assert!(matches!(space.mix(16, false), Err(Error::Full { .. })));
    assert!(space.keep_up().is_ok());
    assert!(matches!(space.mix(16, true), Err(Error::Full { .. })));
    assert!(matches!(space.keep_up(), Err(Error::Full { .. })));
}

#[test]
fn no_image_crosses_the_end_of_a_segment_and_none_overlaps_another() {
    let space = wide_space(8);
    let mut taken = std::collections::BTreeSet::new();
    for (round, stream) in (0..).zip([Stream::Changed, Stream::Moved].into_iter().cycle()) {
        let lengths: Vec<u64> = (0..5).map(|image| (round * 7 + image * 5) % 16 + 1).collect();
        let Some(extents) = space.allocate(&lengths, 0, stream) else { break };
        for (extent, length) in extents.iter().zip(lengths) {
            assert_eq!(extent.blocks, length);
            assert!(space.geometry().segment_with(*extent).is_some_and(|segment| segment < 8));
            assert!((extent.first..extent.end()).all(|block| taken.insert(block)), "{extent:?}");
        }
    }
    assert!(taken.len() > 8 * 32 * 2 / 3, "{}", taken.len());
    assert_eq!(space.live_bytes(), taken.len() as u64 * 4096);
}

#[test]
fn room_for_long_images_is_room_for_shorter_ones() {
    for seed in 0..2000u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        let space = wide_space(1 + below(5));
        for stream in [Stream::Changed, Stream::Moved] {
            let lengths: Vec<u64> = (0..below(6)).map(|_| 1 + below(16)).collect();
            space.allocate(&lengths, 0, stream);
        }
        let (images, spare) = (below(20) as usize, below(2));
        if space.has_room(&vec![16; images], spare, Stream::Changed) {
            let lengths: Vec<u64> = (0..images).map(|_| 1 + below(16)).collect();
            assert!(space.allocate(&lengths, spare, Stream::Changed).is_some(), "seed {seed}: {lengths:?}");
        }
    }
}

#[test]
fn blocks_that_cannot_be_are_refused() {
    let space = wide_space(2);
    let first = space.geometry().first_block(0);
    assert!(space.count([Extent { first, blocks: 16 }]).is_ok());
    for (first, blocks) in [(0, 1), (first - 1, 2), (first + 20, 16), (first + 60, 5), (first + 64, 1)] {
        assert!(matches!(space.count([Extent { first, blocks }]), Err(Error::Corrupt { .. })), "{first}");
    }
    assert!(space.count([Extent { first, blocks: 16 }]).is_ok());
    assert!(space.count([Extent { first, blocks: 1 }]).is_err(), "more than the segment has");
}
