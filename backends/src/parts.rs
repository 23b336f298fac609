//! Ranges of bytes, for APIs that move whole words.

/// A range cut into whole words and the less than four bytes at either end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) words: u64,
    pub(crate) words_len: u64,
    /// Offset and length of either end.
    pub(crate) ends: [(u64, usize); 2],
}

impl Parts {
    pub(crate) fn of(offset: u64, len_bytes: u64) -> Self {
        let end = offset + len_bytes;
        let words = offset.next_multiple_of(4).min(end);
        let words_end = (end & !3).max(words);
        let short = |from: u64, to: u64| (from, usize::try_from(to - from).unwrap_or(0));
        Self { words, words_len: words_end - words, ends: [short(offset, words), short(words_end, end)] }
    }

    #[cfg(any(test, feature = "vulkan"))]
    pub(crate) fn has_ends(&self) -> bool {
        self.ends.iter().any(|(_, len_bytes)| *len_bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_words_and_ends() {
        for offset in 0..9 {
            for len_bytes in 1..20 {
                let parts = Parts::of(offset, len_bytes);
                let [(head, head_len), (tail, tail_len)] = parts.ends;
                assert!(head_len < 4 && tail_len < 4);
                assert_eq!(head, offset);
                assert_eq!(head + head_len as u64, parts.words);
                assert_eq!(parts.words + parts.words_len, tail);
                assert_eq!(tail + tail_len as u64, offset + len_bytes);
                assert_eq!(parts.words_len % 4, 0);
                assert!(parts.words_len == 0 || parts.words.is_multiple_of(4));
            }
        }
    }
}
