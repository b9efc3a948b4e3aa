// How many threads run Go is in the environment. To look for a limit in cgroup
// files would be a fortieth of the life of a process.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command berth-helper is the small binary beside berth, with three lives that
// its arguments choose. As "berth-keeper" it is the keeper of a pod: that life
// is C (keeper.c and beside it) and is led in a constructor, before the Go
// runtime would start. "start" launches one container through libcontainer and
// exits. "init" is libcontainer's own first step inside a container, which it
// starts by executing this binary again.
package main

/*
#cgo CFLAGS: -std=gnu11 -Os -Wall -Wextra -Wno-missing-field-initializers
#cgo !asan LDFLAGS: -static -Wl,--wrap=pthread_create
#cgo asan CFLAGS: -fsanitize=undefined
#cgo asan LDFLAGS: -fsanitize=undefined
*/
import "C"

import (
	"fmt"
	"os"

	_ "github.com/opencontainers/cgroups/devices" // writes device rules
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins namespaces in a constructor
)

// version is set by the build, to that of berth.
var version = "0.1.0-dev"

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "init":
		if err := joinLink(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		libcontainer.Init()
	case (len(os.Args) == 2 || len(os.Args) == 2+orderArgs) && os.Args[1] == "start":
		os.Exit(start())
	case len(os.Args) == 2 && os.Args[1] == "version":
		fmt.Println("berth-helper " + version)
	default:
		fmt.Fprintln(os.Stderr, "berth-helper is started by berth, not by hand")
		os.Exit(2)
	}
}
