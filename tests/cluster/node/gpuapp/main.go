// Command gpuapp is the container of the tests' pods. It reads every byte of each GPU that it is given, writes a secret,
// and verifies the secret as long as it lives. It writes what happens to its standard output and to a journal that
// outlives the pod.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses: a pod whose GPU was not clean, or whose memory was overwritten, is a failed pod.
const (
	dirty = 41 + iota
	wiped
	noGPU
)

const pause = 250 * time.Millisecond // between two looks at the secret

type gpu struct {
	name   string
	file   *os.File // open as long as the process lives
	memory []byte
}

var journal *os.File

func say(format string, values ...any) {
	line := fmt.Sprintf("%.6f ", float64(time.Now().UnixNano())/1e9) + fmt.Sprintf(format, values...) + "\n"
	os.Stdout.WriteString(line)
	if journal != nil {
		journal.WriteString(line)
	}
}

func main() {
	secret := flag.String("secret", os.Getenv("POD_UID"), "the secret of this pod")
	journals := flag.String("journals", "", "directory of the journals")
	stubborn := flag.Bool("stubborn", false, "ignore SIGTERM")
	lifetime := flag.Duration("for", 0, "end after this time; 0: after SIGTERM")
	status := flag.Int("exit", 0, "exit status at the end of that time")
	without := flag.Bool("without", false, "needs no GPU")
	node := flag.String("open", "", "a device node that this container was not given: open it, and say whether that is refused")
	number := flag.Int("number", 0, "make that node first, a block device with this number, as the kernel writes it")
	enter := flag.Bool("enter", false, "before that, enter the mounts of the host, as nsenter does")
	flag.Parse()

	terminated := make(chan os.Signal, 1)
	if *stubborn {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(terminated, syscall.SIGTERM)
	}
	if *journals != "" {
		name := fmt.Sprintf("%s.%s", os.Getenv("POD_NAME"), os.Getenv("CONTAINER"))
		file, err := os.OpenFile(filepath.Join(*journals, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			panic(err)
		}
		journal = file
	}
	say("START pid=%d", os.Getpid())
	var ended <-chan time.Time
	if *lifetime > 0 {
		ended = time.After(*lifetime)
	}

	if *node != "" {
		escape(*node, *number, *enter)
	}
	gpus := open()
	if len(gpus) == 0 && !*without {
		say("NOGPU")
		os.Exit(noGPU)
	}
	for _, it := range gpus {
		found := bytes.Trim(it.memory, "\x00")
		switch {
		case len(found) == 0:
			say("CLEAN gpu=%s bytes=%d", it.name, len(it.memory))
		case filled(it.memory, *secret): // by an earlier container of this pod
			say("OWN gpu=%s bytes=%d", it.name, len(it.memory))
		default:
			say("DIRTY gpu=%s bytes=%d text=%q", it.name, len(found), found[:min(len(found), 60)])
			os.Exit(dirty)
		}
	}
	// Each GPU is full of the secret: what is left of it anywhere is found.
	for _, it := range gpus {
		fill(it.memory, *secret)
	}
	say("HOLDING gpus=%d", len(gpus))
	for {
		for _, it := range gpus {
			if !filled(it.memory, *secret) {
				say("WIPED gpu=%s", it.name)
				os.Exit(wiped)
			}
		}
		say("INTACT")
		select {
		case <-terminated:
			say("TERM")
			return
		case <-ended:
			say("END status=%d", *status)
			os.Exit(*status)
		case <-time.After(pause):
		}
	}
}

// escape opens a device node, and keeps it open if it can.
func escape(node string, number int, enter bool) {
	if enter {
		if err := enterHost(); err != nil {
			say("NOENTRY %v", err)
			return
		}
	}
	if number != 0 {
		if err := syscall.Mknod(node, syscall.S_IFBLK|0o600, number); err != nil {
			say("NONODE %v", err)
			return
		}
	}
	if _, err := syscall.Open(node, syscall.O_RDWR, 0); err != nil {
		say("REFUSED %v", err)
		return
	}
	say("OPENED %s", node)
}

// enterHost gives this thread the mounts of process 1. nsenter's other namespaces change nothing for a device node.
func enterHost() error {
	runtime.LockOSThread()
	mounts, err := unix.Open("/proc/1/ns/mnt", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(mounts, unix.CLONE_NEWNS)
}

// open maps the memory of each GPU of this container.
func open() (gpus []gpu) {
	places, err := filepath.Glob("/dev/simulated-gpu*")
	if err != nil {
		panic(err)
	}
	for _, place := range places {
		file, err := os.OpenFile(place, os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		size, err := file.Seek(0, io.SeekEnd) // of a file, or of a block device
		if err != nil {
			panic(err)
		}
		memory, err := syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			panic(err)
		}
		gpus = append(gpus, gpu{filepath.Base(place), file, memory})
	}
	return gpus
}

func fill(memory []byte, secret string) {
	for at := 0; at < len(memory); {
		at += copy(memory[at:], secret)
	}
}

func filled(memory []byte, secret string) bool {
	for at := 0; at < len(memory); at += len(secret) {
		part := memory[at:min(at+len(secret), len(memory))]
		if string(part) != secret[:len(part)] {
			return false
		}
	}
	return true
}
