//! Makes policies from their names.
//!
//! A [`Build`] takes the policy by type, so a simulator's loop is compiled once per eviction policy
//! without dynamic calls. Admission policies are behind one pointer.

use super::auto::Limits;
use super::name::{AdmissionName, MEMORY_MODE, OPENCAS};
use super::{
    Admission, Arc, Auto, Belady, BlockTable, Clock, Fifo, Filtered, Frequency, Goal, HeuristicDb,
    HeuristicDbSettings, Lfru, Lfu, LfuInCache, LifetimeObp, Lirs, Lru, Mq, Mru, Name, NoEviction, Obp,
    OpenCas, Policy, Probability, Ration, S3Fifo, SequentialCutoff, Settings, Sieve, SmallBypass, Tac,
    TacSettings, TwoQ, WTinyLfu,
};

/// Takes a policy whose type depends on a name.
pub trait Build {
    /// The result.
    type Output;

    /// Takes the policy.
    fn build<P: Policy + 'static>(self, policy: P) -> Self::Output;
}

struct Boxed;

impl Build for Boxed {
    type Output = Box<dyn Policy>;

    fn build<P: Policy + 'static>(self, policy: P) -> Box<dyn Policy> {
        Box::new(policy)
    }
}

impl Name {
    /// Makes the policy and passes it on.
    ///
    /// # Panics
    /// If a required future is missing, or the policy [is direct-mapped](Name::is_direct_mapped).
    pub fn build<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        if self.admissions.is_empty() {
            return self.build_eviction::<T, B>(settings, build);
        }
        let admissions = self.admissions.iter().map(|&(applies, name)| (applies, name.make::<T>(settings)));
        let eviction = self.build_eviction::<T, _>(settings, Boxed);
        build.build(Filtered::new(eviction, settings.capacity, admissions.collect()))
    }

    fn build_eviction<T: BlockTable, B: Build>(&self, settings: &Settings, build: B) -> B::Output {
        let capacity = settings.capacity;
        let heuristicdb = |own: HeuristicDbSettings| {
            let band_blocks = settings.band_blocks.unwrap_or(own.band_blocks);
            HeuristicDb::<T>::new(capacity, HeuristicDbSettings { band_blocks, ..own })
        };
        match self.eviction {
            "lru" => build.build(Lru::new(capacity)),
            "mru" => build.build(Mru::new(capacity)),
            "fifo" => build.build(Fifo::new(capacity)),
            "clock" => build.build(Clock::new(capacity)),
            "lfu" => build.build(match settings.lfu_counts {
                Some(per_slot) => Lfu::<T>::bounded(capacity, per_slot),
                None => Lfu::<T>::new(capacity),
            }),
            "lfu-in-cache" => build.build(LfuInCache::new(capacity)),
            "lfru" => build.build(Lfru::new(capacity, settings.lfru_window)),
            "arc" => build.build(Arc::<T>::new(capacity)),
            "mq" => build.build(Mq::<T>::new(capacity, settings.mq_life_time)),
            "tac" => {
                let band_blocks = settings.band_blocks.unwrap_or(settings.tac.band_blocks);
                build.build(Tac::new(capacity, TacSettings { band_blocks, ..settings.tac }))
            }
            "2q" => build.build(TwoQ::<T>::new(capacity)),
            "lirs" => build.build(Lirs::<T>::new(capacity)),
            "s3-fifo" => build.build(S3Fifo::<T>::new(capacity)),
            "sieve" => build.build(Sieve::new(capacity)),
            "w-tinylfu" => build.build(WTinyLfu::new(capacity, settings.seed)),
            "heuristicdb" => build.build(heuristicdb(settings.heuristicdb)),
            "heuristicdb-eager" => build.build(heuristicdb(HeuristicDbSettings::EAGER)),
            "heuristicdb-paper" => build.build(heuristicdb(HeuristicDbSettings::PAPER)),
            "auto" => build.build(Auto::<T>::new(settings.capacity, Goal::Hits, settings.seed)),
            "auto-thrifty" => build.build(Auto::<T>::new(settings.capacity, Goal::FewWrites, settings.seed)),
            OPENCAS => build.build(OpenCas::new(capacity)),
            MEMORY_MODE => panic!("{MEMORY_MODE} is a placement, not a policy"),
            "belady" => {
                let future = settings.future.clone().expect("belady needs the trace's future");
                build.build(Belady::new(capacity, future))
            }
            name => unreachable!("{name} is no policy's name"),
        }
    }

    /// Makes the policy behind a pointer.
    ///
    /// # Panics
    /// As [`Name::build`].
    pub fn boxed<T: BlockTable>(&self, settings: &Settings) -> Box<dyn Policy> {
        self.build::<T, _>(settings, Boxed)
    }
}

impl AdmissionName {
    fn make<T: BlockTable>(self, settings: &Settings) -> Box<dyn Admission> {
        match self {
            AdmissionName::Always => Box::new(Probability::new(1.0, settings.seed)),
            AdmissionName::Probability(p) => Box::new(Probability::new(p, settings.seed)),
            AdmissionName::Sequential(blocks) => Box::new(SequentialCutoff::new(blocks)),
            AdmissionName::Frequency(chance) => {
                Box::new(Frequency::with_chance(settings.capacity, chance, settings.seed))
            }
            AdmissionName::Ration(share) => Box::new(Ration::<T>::new(settings.capacity, share)),
            AdmissionName::SmallBypass(blocks) => {
                Box::new(SmallBypass::new(blocks.unwrap_or(settings.dram_blocks)))
            }
            AdmissionName::Obp(target) => Box::new(Obp::new(target, settings.obp_window)),
            AdmissionName::ObpLifetime(target) => Box::new(LifetimeObp::new(target)),
            AdmissionName::NoEviction => Box::new(NoEviction),
        }
    }
}

/// The selector makes its candidates by name, and has a name itself.
impl<T: BlockTable> Auto<T> {
    /// For `capacity` blocks; random draws of candidates use `seed`.
    pub fn new(capacity: usize, goal: Goal, seed: u64) -> Self {
        Auto::limited(capacity, goal, seed, Limits::default())
    }

    pub(super) fn limited(capacity: usize, goal: Goal, seed: u64, limits: Limits) -> Self {
        Auto::made_by(Name::boxed::<T>, capacity, goal, seed, limits)
    }
}
