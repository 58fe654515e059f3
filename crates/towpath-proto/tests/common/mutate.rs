//! Mutated documents, equal on every run.

/// A small deterministic generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Creates a generator. Different seeds give different sequences.
    pub fn new(seed: u64) -> Self {
        // Never 0, where xorshift stays for ever.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The low bits are the weakest ones of xorshift*.
        usize::try_from((self.next() >> 16) % (end.max(1) as u64)).unwrap()
    }
}

/// Calls `check` with `count` mutations of the seeds.
///
/// Bytes are flipped, removed, repeated, cut off, or replaced by another seed's or by `tokens`, the syntax of
/// the format.
pub fn mutants(seeds: &[Vec<u8>], tokens: &[&[u8]], count: usize, mut check: impl FnMut(&[u8])) {
    assert!(!seeds.is_empty() && !tokens.is_empty());
    for number in 0..count {
        // One generator per mutant, so that a single failing number can be repeated.
        let mut random = Random::new(number as u64 + 1);
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, seeds, tokens, &mut random);
        }
        check(&bytes);
    }
}

fn mutate(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], tokens: &[&[u8]], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(24)).min(bytes.len());
    match random.below(7) {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 => drop(bytes.drain(at..end)),
        3 => {
            // Repetition makes lists long and nesting deep, where quadratic steps show.
            let piece: Vec<u8> = bytes[at..end].to_vec();
            let times = 1 + random.below(40);
            bytes.splice(at..at, piece.repeat(times));
        }
        4 => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            let to = (from + random.below(60)).min(other.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        5 => {
            let token = tokens[random.below(tokens.len())];
            bytes.splice(at..end, token.iter().copied());
        }
        _ => {
            let token = tokens[random.below(tokens.len())];
            let times = 1 + random.below(300);
            bytes.splice(at..at, token.repeat(times));
        }
    }
}
