// Judges a receipt's proof with the libraries of Go's checksum database: tlogjudge KEY ENVELOPE PROOF.
package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func main() {
	if err := judge(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Println("wrong:", err)
		os.Exit(1)
	}
	fmt.Println("right")
}

func judge(key, envelopeFile, proofFile string) error {
	envelope, err := os.ReadFile(envelopeFile)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(proofFile)
	if err != nil {
		return err
	}
	head, checkpoint, _ := strings.Cut(string(content), "\n\n")
	lines := strings.Split(head, "\n")
	row, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[1], "extra "))
	if err != nil {
		return err
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[2], "index "), 10, 64)
	if err != nil {
		return err
	}
	var proof tlog.RecordProof
	for _, line := range lines[3:] {
		hash, err := tlog.ParseHash(line)
		if err != nil {
			return err
		}
		proof = append(proof, hash)
	}
	verifier, err := note.NewVerifier(key)
	if err != nil {
		return err
	}
	opened, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	if err != nil {
		return err
	}
	body := strings.Split(opened.Text, "\n")
	size, err := strconv.ParseInt(body[1], 10, 64)
	if err != nil {
		return err
	}
	root, err := tlog.ParseHash(body[2])
	if err != nil {
		return err
	}
	entry := fmt.Sprintf("%s\n%x", row, sha256.Sum256(envelope))
	return tlog.CheckRecord(proof, size, root, index, tlog.RecordHash([]byte(entry)))
}
