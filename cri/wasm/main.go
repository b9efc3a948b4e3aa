// Command berth-wasm is the process of a container whose program is a WebAssembly module. It runs inside the container,
// where it was put by the runtime handler wasm, and gives the module what a process there has: arguments, environment,
// stdio, the container's files, the clocks, and an exit code. The interface is WASI preview 1.
//
//	berth-wasm [-memory BYTES] MODULE [ARGUMENT...]
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// Exit codes that shells have for a program that is not one, and for one that is not there.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
	codeTrap          = 134 // as of a program that was ended by SIGABRT
)

// maxModule is more than any module has. Without a bound, naming a device would read it for ever.
const maxModule = 1 << 30

func main() {
	memory := flag.Int64("memory", 0, "how much memory the container may use")
	flag.Parse()
	if *memory > 0 {
		// Compiling takes many times the module's size, unless it is told to make do with less.
		debug.SetMemoryLimit(*memory - *memory/8)
	}
	// A module that computes holds its thread until it asks for something. Another has to be left for signals.
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	endOnSignal()
	code, err := run(context.Background(), flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-wasm:", err)
	}
	os.Exit(code)
}

// endOnSignal makes the signals that end a program end this one. To a container's first process the kernel delivers
// only signals that have a handler, and the module cannot have any.
func endOnSignal() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		if s, ok := (<-c).(unix.Signal); ok {
			os.Exit(128 + int(s))
		}
	}()
}

// run runs a module to its end and returns its exit code.
func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return codeNotFound, errors.New("no module given")
	}
	binary, err := load(args[0], os.Getenv("PATH"))
	if err != nil {
		code := codeNotExecutable
		if errors.Is(err, fs.ErrNotExist) {
			code = codeNotFound
		}
		return code, err
	}
	ctx = experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0))
	r := wazero.NewRuntime(ctx)
	defer r.Close(ctx)
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, r); err != nil {
		return codeNotExecutable, fmt.Errorf("offer WASI: %w", err)
	}
	m, err := r.CompileModule(ctx, binary)
	if err != nil {
		return codeNotExecutable, fmt.Errorf("compile %s: %w", args[0], err)
	}
	config, err := moduleConfig(args)
	if err != nil {
		return codeNotExecutable, err
	}
	// What compiling took is not needed any more.
	debug.FreeOSMemory()
	_, err = r.InstantiateModule(ctx, m, config)
	var exit *sys.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return int(exit.ExitCode() & 0xff), nil // as of every process
	}
	return codeTrap, fmt.Errorf("run %s: %w", args[0], err)
}

// load reads the module, which a name without a slash has in the PATH or in the working directory.
func load(name, path string) ([]byte, error) {
	f, err := open(name, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("exec: %q is not a file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxModule+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("exec: %w", err)
	case len(b) > maxModule:
		return nil, fmt.Errorf("exec: %q is larger than %d bytes", name, maxModule)
	case !strings.HasPrefix(string(b[:min(len(b), 4)]), "\x00asm"):
		return nil, fmt.Errorf("exec: %q is not a WebAssembly module, and a container of this runtime handler runs nothing else", name)
	}
	return b, nil
}

func open(name, path string) (*os.File, error) {
	places := []string{name}
	if !strings.Contains(name, "/") {
		places = nil
		for dir := range strings.SplitSeq(path, ":") {
			if filepath.IsAbs(dir) {
				places = append(places, filepath.Join(dir, name))
			}
		}
		places = append(places, name)
	}
	for _, p := range places {
		// Without O_NONBLOCK a FIFO would be waited for.
		f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("exec: %w", err)
		}
	}
	return nil, fmt.Errorf("exec: %q: %w", name, fs.ErrNotExist)
}

// moduleConfig is the module's view of the container.
func moduleConfig(args []string) (wazero.ModuleConfig, error) {
	config := wazero.NewModuleConfig().
		WithName(""). // so that nothing can import it
		WithArgs(args...).
		WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithFSConfig(wazero.NewFSConfig().WithDirMount("/", "/")).
		WithRandSource(rand.Reader).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().WithOsyield(runtime.Gosched)
	cwd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "PWD" {
			config = config.WithEnv(k, v)
		}
	}
	// WASI has no working directory. Those who need one, Go and Rust among them, take it from here.
	return config.WithEnv("PWD", cwd), nil
}
