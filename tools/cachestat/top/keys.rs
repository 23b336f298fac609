//! What each key asks for.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::board::{Action, Pane};

/// Lines that a page key scrolls.
const PAGE: isize = 10;

/// The keys, for people: key and what it does.
pub const HELP: [(&str, &str); 8] = [
    ("up down  k j", "choose a page"),
    ("1 … 6", "what is shown of it"),
    ("left right  tab", "the pane before, the next"),
    ("pgup pgdn", "scroll the pane"),
    ("s", "order: by pid, by stall, by MB/s"),
    ("space  p", "pause, go on"),
    ("h  ?", "this"),
    ("q  esc  ctrl-c", "end"),
];

/// The action of a key; `None` for a key that has none, or its release.
pub fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Scroll(-PAGE),
        KeyCode::PageDown => Action::Scroll(PAGE),
        KeyCode::Home => Action::Scroll(isize::MIN),
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => Action::NextPane,
        KeyCode::BackTab | KeyCode::Left => Action::PreviousPane,
        KeyCode::Char(digit @ '1'..='6') => Action::Show(Pane::ALL[digit as usize - '1' as usize]),
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char(' ' | 'p') => Action::Pause,
        KeyCode::Char('h' | '?') => Action::Help,
        KeyCode::Char('q') | KeyCode::Esc => Action::Quit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_what_they_do() {
        let plain = |code| action(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(plain(KeyCode::Char('6')), Some(Action::Show(Pane::Advice)));
        assert_eq!(plain(KeyCode::Char('7')), None);
        assert_eq!(plain(KeyCode::Char('c')), None);
        assert_eq!(action(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Action::Quit));
        let mut released = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert_eq!(action(released), None);
    }
}
