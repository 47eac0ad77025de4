//! Calls that nvcc's code makes before `main`: fat binaries, kernels and variables.

use crate::abi::{Text, runtime};
use crate::errors::{Failure, INVALID_DEVICE_FUNCTION, INVALID_SYMBOL};
use crate::modules::unknown;
use crate::report;
use crate::state::{self, Registered, State, Symbol};

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(image: u64) -> u64 {
    let mut state = state::lock();
    let handle = state.handle();
    state.fatbins.insert(handle, Registered { image, module: None });
    handle
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_fatbin: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(fatbin: u64) {
    runtime::query("__cudaUnregisterFatBinary", |state| {
        state.flush();
        state.fatbins.remove(&fatbin);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_fatbin: u64) -> i8 {
    1
}

fn register(fatbin: u64, host: u64, name: Text) {
    runtime::query("registration of a kernel or variable", |state| {
        state.symbols.insert(host, Symbol { fatbin, name: name.get()? });
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(
    fatbin: u64,
    host: u64,
    _device: u64,
    name: Text,
    _thread_limit: i32,
    _tid: u64,
    _bid: u64,
    _block: u64,
    _grid: u64,
    _warp: u64,
) {
    register(fatbin, host, name);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    fatbin: u64,
    host: u64,
    _device: u64,
    name: Text,
    _external: i32,
    _size: u64,
    _constant: i32,
    _global: i32,
) {
    register(fatbin, host, name);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterManagedVar(
    _fatbin: u64,
    _host: u64,
    _device: u64,
    name: Text,
    _external: i32,
    _size: u64,
    _constant: i32,
    _global: i32,
) {
    let name = name.get().unwrap_or_default();
    report::complain(format_args!("__managed__ variables (`{name}`) are not modelled"));
    // The program would follow a null pointer, and has no error to look at.
    std::process::exit(2);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterHostVar() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterUnifiedTable() {}

impl State {
    /// The module of a fat binary, which is loaded for it.
    fn registered_module(&mut self, fatbin: u64) -> Result<u64, Failure> {
        let registered = self.fatbins.get(&fatbin).ok_or_else(|| unknown("fat binary", fatbin))?;
        if let Some(module) = registered.module {
            return Ok(module);
        }
        let image = registered.image;
        let module = self.load_module(image)?;
        if let Some(registered) = self.fatbins.get_mut(&fatbin) {
            registered.module = Some(module);
        }
        Ok(module)
    }

    /// The kernel that a host function stands for, or that a handle is of.
    pub(crate) fn registered_kernel(&mut self, function: u64) -> Result<u64, Failure> {
        if self.kernels.contains_key(&function) {
            return Ok(function);
        }
        let Some(symbol) = self.symbols.get(&function).cloned() else {
            let message = format!("{function:#x} is no kernel of the program");
            return Err(Failure::new(INVALID_DEVICE_FUNCTION, message));
        };
        let module = self.registered_module(symbol.fatbin)?;
        self.kernel_of(module, &symbol.name)
    }

    /// Address and size of the variable that a host variable stands for.
    pub(crate) fn registered_variable(&mut self, host: u64) -> Result<(u64, u64), Failure> {
        let Some(symbol) = self.symbols.get(&host).cloned() else {
            let message = format!("{host:#x} is no variable of a module");
            return Err(Failure::new(INVALID_SYMBOL, message));
        };
        let module = self.registered_module(symbol.fatbin)?;
        self.variable(module, &symbol.name)
    }
}
