package oci

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The real-time signals as libc counts them: it keeps the kernel's first two to itself.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// StopSignal is the signal that asks a container to end: the pod's, else the image's, else SIGTERM.
func StopSignal(c runtimeapi.Signal, image string) (unix.Signal, error) {
	if c != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name := strings.TrimPrefix(c.String(), "SIGNAL_")
		name = strings.Replace(strings.Replace(name, "PLUS", "+", 1), "MINUS", "-", 1)
		return ParseSignal(name)
	}
	if image != "" {
		return ParseSignal(image)
	}
	return unix.SIGTERM, nil
}

// ParseSignal reads "SIGTERM", "term", "15", "SIGRTMIN+3" or "RTMAX-1".
func ParseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > sigRTMax {
			return 0, fmt.Errorf("signal %d is not one from 1 to %d", n, sigRTMax)
		}
		return unix.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for base, first := range map[string]int{"RTMIN": sigRTMin, "RTMAX": sigRTMax} {
		rest, ok := strings.CutPrefix(name, base)
		if !ok {
			continue
		}
		off := 0
		if rest != "" {
			var err error
			if off, err = strconv.Atoi(rest); err != nil {
				return 0, fmt.Errorf("signal %q is not known", s)
			}
		}
		if n := first + off; n >= sigRTMin && n <= sigRTMax {
			return unix.Signal(n), nil
		}
		return 0, fmt.Errorf("signal %q is out of range", s)
	}
	switch name {
	case "CLD":
		return unix.SIGCHLD, nil
	case "POLL":
		return unix.SIGIO, nil
	case "IOT":
		return unix.SIGABRT, nil
	}
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return n, nil
	}
	return 0, fmt.Errorf("signal %q is not known", s)
}

// SignalOf is the CRI's name of a signal.
func SignalOf(sig unix.Signal) runtimeapi.Signal {
	if sig >= sigRTMin && sig <= sigRTMax {
		name := "SIGNAL_SIGRTMIN"
		switch off := int(sig) - sigRTMin; {
		case off == 0:
		case off <= 15:
			name += fmt.Sprintf("PLUS%d", off)
		case sig == sigRTMax:
			name = "SIGNAL_SIGRTMAX"
		default:
			name = fmt.Sprintf("SIGNAL_SIGRTMAXMINUS%d", sigRTMax-int(sig))
		}
		return runtimeapi.Signal(runtimeapi.Signal_value[name])
	}
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+unix.SignalName(sig)])
}
