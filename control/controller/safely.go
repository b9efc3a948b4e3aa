package controller

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Safely has a function's panic be an error of it. Controllers work on objects of strangers, in one process with the
// API server and etcd: what one of them has not thought of is to cost that object, and not the cluster, which would
// start and meet the object again and again. What a function starts beside itself has to be called by it, too.
func Safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, string(debug.Stack())}
		}
	}()
	return f()
}

// panicked is a panic as an error.
type panicked struct {
	value any
	stack string
}

// Error implements error.
func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// stackOf is where a panic was that an error has come of; empty: of none.
func stackOf(err error) string {
	if p, ok := errors.AsType[*panicked](err); ok {
		return p.stack
	}
	return ""
}
