/* The files of GPUs below /dev. */
#ifndef NODES_H
#define NODES_H

int open_node(int gpu); /* until the caller closes it; -1: there is none */

#endif
