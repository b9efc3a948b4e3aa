// Package disk tells the errors of a file system that is full or failing from all others, and does again what there was
// no room for.
package disk

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Full says that an error is of a file system or a quota that is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Scarce says that an error is of something that this process or the machine has only so much of, descriptors or
// memory, and not of the file: that is as good as it was.
func Scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// SaysFull is [Full] for the error of a call to another process, which has words only.
func SaysFull(err error) bool {
	if err == nil || Full(err) {
		return err != nil
	}
	text := err.Error()
	return strings.Contains(text, unix.ENOSPC.Error()) || strings.Contains(text, unix.EDQUOT.Error())
}

// Unwritable says that an error is of a file system that is full, read-only or failing.
func Unwritable(err error) bool {
	return Full(err) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO)
}

// Tries is how often something is done that there is no room for, with room made in between: an image takes it twice,
// packed and unpacked. What has no room then may never have: if one went on, all images would go for it that nobody
// uses.
const Tries = 3

// Again calls do, and again where there was no room for it ([SaysFull]) and room says that there may be more than when
// it was begun, at since. What do has done when it fails is such that it can be called again. The error is do's last.
func Again(ctx context.Context, do func() error, room func(since time.Time, err error) bool) error {
	for try := 1; ; try++ {
		began := time.Now()
		err := do()
		if err == nil || ctx.Err() != nil || !SaysFull(err) || try == Tries || !room(began, err) {
			return err
		}
	}
}
