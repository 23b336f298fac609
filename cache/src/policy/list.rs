//! Queues of items through two arrays: what the FIFO policies are made of. An item is in one queue at most.

const NONE: u32 = u32::MAX;

/// Links of all items, shared by the queues of one policy.
#[derive(Debug, Default)]
pub(super) struct Links {
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Links {
    pub(super) fn grow(&mut self, items: usize) {
        self.next.resize(items, NONE);
        self.previous.resize(items, NONE);
    }
}

/// One queue: head leaves first.
#[derive(Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { head: NONE, tail: NONE, len: 0 }
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The one behind `item`, which must be in this queue.
    pub(super) fn after(&self, item: u32, links: &Links) -> Option<u32> {
        let next = links.next[item as usize];
        (next != NONE).then_some(next)
    }

    pub(super) fn push(&mut self, item: u32, links: &mut Links) {
        links.previous[item as usize] = self.tail;
        links.next[item as usize] = NONE;
        match self.tail {
            NONE => self.head = item,
            tail => links.next[tail as usize] = item,
        }
        self.tail = item;
        self.len += 1;
    }

    /// Only for an item that is in this queue.
    pub(super) fn remove(&mut self, item: u32, links: &mut Links) {
        let (previous, next) = (links.previous[item as usize], links.next[item as usize]);
        match previous {
            NONE => self.head = next,
            previous => links.next[previous as usize] = next,
        }
        match next {
            NONE => self.tail = previous,
            next => links.previous[next as usize] = previous,
        }
        self.len -= 1;
    }

    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let head = self.head()?;
        self.remove(head, links);
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_with_removals_from_the_middle() {
        let (mut links, mut queue) = (Links::default(), Queue::default());
        links.grow(5);
        for item in 0..5 {
            queue.push(item, &mut links);
        }
        for item in [2, 0, 4] {
            queue.remove(item, &mut links);
        }
        queue.push(2, &mut links);
        assert_eq!((queue.len(), queue.head(), queue.after(1, &links)), (3, Some(1), Some(3)));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop(&mut links)).collect();
        assert_eq!((order, queue.len()), (vec![1, 3, 2], 0));
    }
}
