//! A guest's boot image: the kernel as an ELF file, and an initramfs with modules, tools and the
//! program to run.

use super::debian::Debian;
use crate::process::{make_empty, make_folder, names_in, read, write};
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("init.sh");
/// Modules that turn a CXL memory device into a DAX device. Some may be built into the kernel.
const MODULES: [&str; 6] = ["cxl_port", "cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax"];

/// The parts of every image.
pub struct Images {
    pub kernel: PathBuf,
    /// Everything but the program.
    base: Vec<Entry>,
    folder: PathBuf,
}

impl Images {
    pub fn prepare(debian: &Debian, cache: &Path) -> Result<Self, String> {
        let folder = cache.join("images");
        make_folder(&folder)?;
        let kernel = kernel(debian, &folder)?;
        let mut base = vec![
            Entry::folder("bin"),
            Entry::folder("dev"),
            Entry::folder("lib"),
            Entry::folder("lib64"),
            Entry::folder("modules"),
            Entry::folder("proc"),
            Entry::folder("sys"),
            Entry::console("dev/console"),
            Entry::file("init", INIT.as_bytes().to_vec()),
        ];
        for tool in ["busybox", "cxl"] {
            base.push(Entry::file(&format!("bin/{tool}"), read(&debian.tool(tool))?));
        }
        for library in debian.tools.libraries_of(&debian.tool("cxl"))? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let place = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
            base.push(Entry::file(&format!("{place}/{name}"), read(&library)?));
        }
        for (index, (name, module)) in modules(debian, &folder.join("modules"))?.into_iter().enumerate() {
            // The guest loads them in the order of their names.
            base.push(Entry::file(&format!("modules/{index:02}-{name}.ko"), module));
        }
        Ok(Self { kernel, base, folder })
    }

    /// An initramfs with this program as `/bin/NAME`.
    pub fn with_program(&self, name: &str, program: &Path) -> Result<PathBuf, String> {
        let program = Entry::file(&format!("bin/{name}"), read(program)?);
        let path = self.folder.join(format!("{name}.cpio"));
        write(&path, archive(self.base.iter().chain([&program, &Entry::end()])))?;
        Ok(path)
    }
}

/// The kernel without its own unpacker, which is slow in an emulator.
fn kernel(debian: &Debian, folder: &Path) -> Result<PathBuf, String> {
    let boot = debian.kernel.folder.join("boot");
    let name = names_in(&boot)?.into_iter().find(|name| name.starts_with("vmlinuz-"));
    let name = name.ok_or_else(|| format!("{} has no kernel", boot.display()))?;
    let elf = folder.join("vmlinux");
    let image = read(&boot.join(&name))?;
    let packed = payload(&image).ok_or_else(|| format!("{name} is not laid out as a bzImage"))?;
    let (program, arguments) = match packed {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", ["-d", "-c", "-q"]),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", ["-d", "-c", "-q"]),
        _ => return Err(format!("{name} is packed in a way that this task cannot unpack")),
    };
    let piece = folder.join("vmlinux.packed");
    write(&piece, packed)?;
    debian.filter(program, &arguments, &piece, &elf)?;
    if read(&elf)?.starts_with(b"\x7fELF") { Ok(elf) } else { Err(format!("{name} holds no ELF file")) }
}

/// The compressed kernel in a bzImage, without the length after it.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    // 0 means 4, for kernels older than the field.
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(0x248)?;
    image.get(start..start + number(0x24c)?.checked_sub(4)?)
}

/// The modules in loading order, dependencies first.
fn modules(debian: &Debian, folder: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    make_empty(folder)?;
    let versions = debian.kernel.folder.join("usr/lib/modules");
    let version = names_in(&versions)?.pop().ok_or_else(|| format!("{} is empty", versions.display()))?;
    let tree = versions.join(version);
    let list = |name: &str| read(&tree.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (files, built_in) = (list("modules.order")?, list("modules.builtin")?);
    let has = |list: &str, name: &str| list.lines().any(|line| module_name(line) == name);
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    let mut waiting: Vec<String> = MODULES.iter().rev().map(|name| (*name).to_owned()).collect();
    while let Some(name) = waiting.pop() {
        if has(&built_in, &name) || found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let line = files.lines().find(|line| module_name(line) == name);
        let line = line.ok_or_else(|| format!("the kernel has no module {name}"))?;
        let bytes = unpacked_module(debian, &tree, line, &folder.join(format!("{name}.ko")))?;
        let known = |needed: &String| has(&built_in, needed) || found.iter().any(|(known, _)| known == needed);
        let missing: Vec<String> = depends(&bytes).into_iter().filter(|needed| !known(needed)).collect();
        if missing.is_empty() {
            found.push((name, bytes));
        } else if waiting.len() > 100 {
            return Err(format!("the dependencies of module {name} have no end"));
        } else {
            waiting.push(name);
            waiting.extend(missing);
        }
    }
    Ok(found)
}

fn unpacked_module(debian: &Debian, tree: &Path, line: &str, to: &Path) -> Result<Vec<u8>, String> {
    if to.exists() {
        return read(to);
    }
    for (ending, program) in [("", None), (".xz", Some("xz")), (".zst", Some("zstd"))] {
        let path = tree.join(format!("{line}{ending}"));
        match program {
            _ if !path.exists() => (),
            None => return read(&path),
            Some(program) => {
                debian.filter(program, &["-d", "-c", "-q"], &path, to)?;
                return read(to);
            }
        }
    }
    Err(format!("module {line} is not in the kernel's package"))
}

/// `kernel/drivers/dax/device_dax.ko` is `device_dax`; a dash in a file's name is an underscore in
/// a module's.
fn module_name(line: &str) -> String {
    let file = line.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// Modules that a module declares as its dependencies.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// An entry of an initramfs.
struct Entry {
    path: String,
    mode: u32,
    /// Device numbers of a node.
    device: (u32, u32),
    bytes: Vec<u8>,
}

impl Entry {
    fn folder(path: &str) -> Self {
        Self { path: path.to_owned(), mode: 0o040_755, device: (0, 0), bytes: Vec::new() }
    }

    fn file(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o100_755, device: (0, 0), bytes }
    }

    fn console(path: &str) -> Self {
        Self { path: path.to_owned(), mode: 0o020_600, device: (5, 1), bytes: Vec::new() }
    }

    /// The end of an archive.
    fn end() -> Self {
        Self { path: "TRAILER!!!".to_owned(), mode: 0, device: (0, 0), bytes: Vec::new() }
    }
}

/// A cpio archive in the kernel's format ("newc"). It is not compressed, because an emulator
/// unpacks slowly.
fn archive<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut archive = Vec::new();
    for (index, entry) in entries.enumerate() {
        let (major, minor) = entry.device;
        let name_bytes = entry.path.len() as u32 + 1;
        let numbers =
            [index as u32 + 1, entry.mode, 0, 0, 1, 0, entry.bytes.len() as u32, 0, 0, major, minor, name_bytes, 0];
        archive.extend_from_slice(b"070701");
        for number in numbers {
            archive.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        archive.extend_from_slice(entry.path.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(&entry.bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_names_and_bytes_on_fours() {
        let entries = [Entry::folder("bin"), Entry::file("bin/x", b"hello".to_vec()), Entry::end()];
        let archive = archive(entries.iter());
        let text = String::from_utf8_lossy(&archive);
        let file = text.find("bin/x").expect("the name is there");
        assert_eq!(&text[file - 110..file - 104], "070701");
        assert_eq!(&text[file - 104 + 8..file - 104 + 16], "000081ed");
        assert_eq!(&text[file - 104 + 48..file - 104 + 56], "00000005");
        assert_eq!(&text[file + 6..file + 14], "hello\0\0\0");
        assert_eq!(archive.len() % 4, 0);
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"));
    }

    #[test]
    fn a_kernel_image_names_its_payload() {
        let mut image = vec![0; 4096];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12_u32.to_le_bytes());
        image[1040..1048].copy_from_slice(b"payload!");
        assert_eq!(payload(&image), Some(&b"payload!"[..]));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(b"short"), None);
    }

    #[test]
    fn modules_tell_their_names_and_needs() {
        assert_eq!(module_name("kernel/drivers/x/a-b.ko"), "a_b");
        assert_eq!(depends(b"x\0license=GPL\0depends=cxl-core,dax\0name=y"), ["cxl_core", "dax"]);
        assert!(depends(b"x\0depends=\0y").is_empty() && depends(b"").is_empty());
    }
}
