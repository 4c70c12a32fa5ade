// What entry.go writes and entry.c reads.

#define MAGIC 0x77656972
#define READY 0xffffffff // instead of a step's number: all is done but what comes after PASS

struct head {
	u32 magic, steps, first, unused; // first: what the first step is called in a reply
};

struct step {
	u32 kind, number;
	u64 flags, hard;
	u32 text[4]; // where strings begin, from the list's beginning
};

enum { REPLY = 1, JOIN, OUTLIVE, ENTER, ROOT, UNSHARE, MOUNT, MOVE, DIRECTORY, TOUCH, HOSTNAME, LIMIT, IDENTITY, CHANGE, COPY, PRIVATE, PART,
	MASK, FILTER, OWN, WORDS, FIND, PASS, SEAL, EXECUTE, SESSION, OPEN, REROOT, WRITE };
