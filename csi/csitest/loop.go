package csitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attach gives a volume its loop device, or finds the one that it has.
func (s *store) attach(id string) (device string, err error) {
	if has := loops(s.image(id)); len(has) > 0 {
		return has[0], nil
	}
	image, err := os.OpenFile(s.image(id), os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open loop control: %w", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		device := "/dev/loop" + strconv.Itoa(n)
		err = configure(device, image)
		if errors.Is(err, unix.EBUSY) { // somebody else was faster
			continue
		}
		return device, err
	}
}

func configure(device string, image *os.File) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer loop.Close()
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(image.Fd())}); err != nil {
		return fmt.Errorf("attach %s: %w", device, err)
	}
	return nil
}

// loops are the devices of an image.
func loops(image string) []string {
	var all []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(data)) == image {
			all = append(all, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return all
}

// detach gives the loop device of a volume back. One that is mounted still goes with its last mount.
func (s *store) detach(id string) error {
	for _, device := range loops(s.image(id)) {
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open loop device: %w", err)
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
		_ = loop.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("detach %s: %w", device, err)
		}
	}
	return nil
}

// grow tells the device of a volume that its image is larger.
func (s *store) grow(id string) error {
	for _, device := range loops(s.image(id)) {
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open loop device: %w", err)
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0)
		_ = loop.Close()
		if err != nil {
			return fmt.Errorf("grow %s: %w", device, err)
		}
	}
	return nil
}
