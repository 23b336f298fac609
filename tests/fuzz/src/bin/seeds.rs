//! Writes starting points for the targets into `corpus/`; `SPOC_CASES` adds the files of its folder. Run in `tests/fuzz`.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let cases = std::env::var_os("SPOC_CASES");
    for (target, name, bytes) in spoc_fuzz::seeds::all(cases.as_deref().map(Path::new))? {
        let folder = Path::new("corpus").join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
