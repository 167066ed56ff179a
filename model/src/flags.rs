//! Flags: each leaves one rule out, or plants one bug. None means the protocol as designed.

use std::fmt;

macro_rules! flags {
    ($($name:ident $rule:literal $what:literal)*) => {
        /// A rule that is left out, or a bug.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flag {
            $($name,)*
        }

        /// All flags, in the order of the rules.
        pub const ALL: &[Flag] = &[$(Flag::$name,)*];

        impl Flag {
            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Flag::$name => stringify!($name),)*
                }
            }

            /// The rule of `docs/durability.md` that it breaks.
            pub fn rule(self) -> u8 {
                match self {
                    $(Flag::$name => $rule,)*
                }
            }

            /// One clause about it.
            pub fn what(self) -> &'static str {
                match self {
                    $(Flag::$name => $what,)*
                }
            }
        }
    };
}

flags! {
    WatermarkAsMaximum 1 "the durable end is the highest record written, past holes"
    SkipHoles 1 "recovery reads on behind a hole"
    AcknowledgeEarly 1 "acknowledged before the commit record is durable"
    NoLsnInRecord 2 "a record does not carry its own LSN"
    NoEpochInRecords 2 "recovery starts no new epoch"
    EpochsOnlyGrow 2 "epochs must only grow along the log; no first LSN in the superblock"
    AppendBeforeEpochSync 2 "records are appended before the superblock with the epoch is synced"
    MergeReadsSource 3 "redo of a merge reads the page that it freed"
    AppendBeforeLatching 3 "the LSN is drawn before the page is latched"
    NoEndRecordAfterUndo 4 "no end record: a loser is undone at each recovery"
    CompensationNotRedone 4 "redo passes compensation records"
    MappingBeforeImageSync 5 "the mapping record is appended before the image is synced"
    FreeAtImageSync 5 "the old block is free when the new image is synced"
    FreeAtMappingAppend 5 "the old block is free when the mapping record is appended"
    RecLsnOfMapping 5 "recLSN becomes the LSN of the mapping record"
    TwoImagesInFlight 6 "checkpoint and cleaner may both write a page"
    FreeClaimedPage 6 "a claimed page is freed and its id used again"
    ReuseFreedBlock 7 "the block of a freed page is free before that is durable"
    ForgetFreedRecLsn 7 "recLSN of a freed page is dropped at once"
    ChunkHoldsUndurable 8 "a chunk's image holds mappings whose record is not durable"
    ChunkInPlace 8 "a chunk's image is overwritten"
    ChunkWithoutLsn 8 "a chunk's image has no LSN that it is current to"
    ChunkDirtyInForce 8 "a chunk is dirty from the mapping in force, not from its record"
    FreeLeavesChunkClean 8 "allocating and freeing does not make the chunk dirty"
    TrustUnsealedFrame 9 "recovery adopts frames that are not sealed"
    UnsealWithoutFence 9 "no fence between the unsealing and the first store"
    HeadersNotWrittenBack 9 "recovery reads headers before it writes them back"
    UnsealByHeader 9 "no unsealing where the header reads unsealed"
    SealBeforeBodyFence 9 "a frame is sealed before its body is fenced"
    SealBeforeDurable 9 "a frame is sealed before the log is durable to its LSN"
    SealWordFirst 9 "the seal word is stored before page and LSN are fenced"
    SealWithoutLatch 9 "the page changes between the check of its LSN and the seal word"
    SealOlderCopy 9 "a frame below a newer copy is sealed"
    SealFreedPage 9 "the frame of a freed page is sealed"
    SealBeforeTierLife 9 "a frame is sealed before the tier's file names this life"
    SealMovesRecLsn 9 "sealing a frame moves recLSN"
    UnsealNotAtMapping 9 "an older frame stays sealed when a newer image comes into force"
    KeepSealOfVacated 9 "a frame that stops holding a page stays sealed"
    KeepSealOfFreed 9 "the frame of a freed page stays sealed"
    FrameBelowMapping 10 "recovery ignores the image LSNs of the mapping records in the log"
    FrameBelowAllocation 10 "recovery ignores that a page was allocated after the frame's LSN"
    FrameBeyondLogEnd 10 "recovery adopts frames with LSNs above the log's end"
    FrameOfFreePage 10 "recovery adopts frames of pages that are not allocated"
    LowestDuplicate 10 "of two frames of a page the older one is adopted"
    KeepSealOfUnadopted 10 "frames that recovery does not adopt stay sealed"
    KeepSealBeyondEnd 10 "frames behind the end of a tier that is now smaller stay sealed"
    AppendBeforeTierEpoch 10 "records are appended before the tier has the epoch"
    TierEpochBeforeUnsealing 10 "the tier's epoch is durable before those frames are unsealed"
    TierEpochFirst 10 "the tier's epoch is durable before the superblock's"
    IgnoreTierEpoch 10 "frames count whatever the epoch of the tier's file"
    IgnoreTierLife 10 "frames count whatever the number of the life in the tier's file"
    IgnoreTierTimeline 10 "frames count whatever the timeline of the tier's file"
    RedoLeavesClean 10 "a page based on a frame is dirty only from what redo changes"
    AdoptBeforeCount 10 "blocks below adopted frames are not counted as taken"
    CutIgnoresRecLsn 11 "the cut passes recLSNs"
    CutPastCommitInFlight 11 "the cut passes commits in flight"
    CommitEndsAtUnlock 11 "a commit ends before its record is durable"
    SplitNotInFlight 11 "the cut passes a split or merge that is not applied"
    CutPastLosers 11 "the cut passes losers whose end record is not durable"
    CutPastDirtyChunk 11 "the cut passes what chunks lack"
    CutPastWatermark 11 "the cut passes the durable end"
    CutComputedEarly 11 "the cut is computed some time before it is written"
    RecycleBeforeSuperblock 11 "log space is reused before the superblock is synced"
    TwoSuperblockWrites 11 "a superblock is written while the last one is not synced"
    WriteNewestSuperblock 11 "the choice of the superblock's slot starts again at open"
    LogLeftBehind 12 "records with other offsets are not copied"
    LogInOldRing 12 "records written meanwhile are in the old ring only"
    AnnounceBeforeCopySync 12 "the superblock names the new capacity before the copies are synced"
    NoSyncAtRecovery 13 "recovery trusts what a killed process left in the cache"
    BaseThroughOldMapping 13 "a base image is read through the mapping known so far"
    RedoIgnoresAllocation 13 "redo applies records from before a page's last allocation"
    BackupCutsLog 15 "the cut passes what a backup needs"
    BackupReadsFreedBlocks 15 "blocks freed during a backup are reused"
    BackupEndsLogEarly 15 "the backup's log ends where the log ended when it began"
    BackupReadsUnfiled 15 "the backup copies the file before the ring is filed"
    RestoreKeepsTimeline 15 "a restored database has the old timeline"
    RingNotFenced 16 "a record is durable before its lines are fenced"
    RingRoomByPersistent 16 "room in the ring is counted from the persistent end"
    RingRoomBeforeSync 16 "records are filed before the file is synced"
    RingTakesTorn 16 "records are taken from the ring without a checksum"
    RingIgnoresLsn 16 "records are taken from the ring without a look at their LSN"
    RingIgnoresEpoch 16 "records are taken from the ring without a look at their epoch"
    RingNotCleared 16 "a ring that was not named is named as it is"
    RingOfOtherLife 16 "a named ring counts whatever the life that it is of"
    KeepOldRingLife 16 "the ring is also of the life before, after the first append"
    PutBackWithinLife 16 "files copied earlier in a life meet a ring that has gone on in it (no rule is against it)"
    RingNotNamed 16 "the superblock names the ring only at the next cut"
    ClearRingEarly 16 "the superblock stops naming the ring before the file is synced"
    OpenWithoutRing 16 "a missing ring is not refused"
    LeaveRingRecords 16 "recovery reads the ring's records, but does not file them"
    LogEndBeforeRing 16 "the superblock's log end is compared before the ring is read"
}

/// A set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u128);

impl Flags {
    /// The protocol as designed.
    pub const STRICT: Flags = Flags(0);

    /// A set of these.
    pub fn of(flags: &[Flag]) -> Self {
        flags.iter().fold(Self::STRICT, |set, &flag| set.with(flag))
    }

    /// This set and `flag`.
    pub fn with(self, flag: Flag) -> Self {
        Self(self.0 | 1 << flag as u32)
    }

    /// Whether `flag` is in the set.
    pub fn has(self, flag: Flag) -> bool {
        self.0 >> flag as u32 & 1 == 1
    }

    /// Reads names with commas between them; `-` is the protocol as designed.
    ///
    /// # Errors
    /// A sentence about the name that is none.
    pub fn parse(names: &str) -> Result<Self, String> {
        let mut set = Self::STRICT;
        for name in names.split(',').filter(|name| !name.is_empty() && *name != "-") {
            let flag = ALL.iter().find(|flag| flag.name() == name);
            set = set.with(*flag.ok_or_else(|| format!("{name} is no flag; `flags` lists them"))?);
        }
        Ok(set)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = ALL.iter().filter(|flag| self.has(**flag)).map(|flag| flag.name()).collect();
        formatter.write_str(if names.is_empty() { "strict" } else { "" })?;
        formatter.write_str(&names.join(","))
    }
}
